"""Threads that convert at once, and threads that do not convert meanwhile."""

import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

import amprewrite
from amprewrite.errors import CaptureError
from tests.fuzzing import seeds
from tests.torch_process import differences, process_state, recorded_changes
from tests.torch_programs import Program

pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")

PACKAGE = Path(amprewrite.__file__).parent
X = torch.randn(4, 3, 16)


def attending() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()


def mixed() -> Any:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))
    return model.append(nn.Linear(16, 8)).eval()


def recurrent() -> Any:
    return Program(lambda m, x: m.r(x)[0], r=nn.GRU(16, 16, batch_first=True)).eval()


def casting() -> Any:
    return Program(lambda m, x: m.a(x.float()) + m.a(x), a=nn.Linear(16, 16)).eval()


def failing() -> Any:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x[: int(x.sum())])

    return Program(forward, a=nn.Linear(16, 16)).eval()


def switched(model: Any) -> Any:
    converted = amprewrite.convert(model.train(), args=(X,))
    return converted.eval()(X)


def refused(model: Any) -> None:
    def forward(m: Any, x: Any) -> Any:
        raise ValueError(m, x)

    with pytest.raises(CaptureError):
        amprewrite.convert(Program(forward, a=model), args=(X,))


WAYS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (attending, lambda m: amprewrite.convert(m, args=(X,))(X)),
    (attending, lambda m: amprewrite.convert(m)(X)),
    (recurrent, lambda m: amprewrite.convert(m, args=(X,))(X)),
    (recurrent, lambda m: amprewrite.convert(m, "promote")(X)),
    (casting, lambda m: amprewrite.convert(m, args=(X,))(X)),
    (casting, lambda m: amprewrite.verify(m, amprewrite.convert(m, args=(X,)), (X,))),
    (mixed, lambda m: amprewrite.convert(m, args=(X,), tolerance=1e-2)(X)),
    (mixed, lambda m: amprewrite.inspect(m, args=(X,))),
    (mixed, lambda m: amprewrite.convert(m, "promote", args=(X.double(),))(X.double())),
    (mixed, switched),
    (mixed, refused),
    (failing, lambda m: amprewrite.convert(m)(X.abs())),
]


def test_the_process_is_after_each_way_as_it_was_before() -> None:
    amprewrite.convert(mixed(), args=(X,), placement="optimal")  # imports scipy, too
    with recorded_changes() as places:
        for make, run in WAYS:
            model = make()
            before = process_state(places)
            run(model)
            assert not differences(before, process_state(places))
    names = {name for _, name in places}
    assert len(names) > 12
    assert {"register_hook", "__enter__", "check_input", "gru_cell"} <= names


def test_all_changes_of_the_process_are_made_in_one_place() -> None:
    """Otherwise the state above would not see them; and others threads would."""
    wanted = re.compile(
        r"mock\.|catch_warnings|simplefilter|filterwarnings|\.set_flags|set_fastpath|"
        r"\.disabled|setLevel|setattr\((torch|nn|checkpoint|transformer|level)"
    )
    files = (PACKAGE / "frameworks" / "torch_fx").rglob("*.py")
    found = {file.name for file in files if wanted.search(file.read_text("utf-8"))}
    assert found == {"threads.py"}


def in_threads(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run tasks in one thread each, begun at once."""
    barrier = threading.Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [done.result() for done in [pool.submit(begin, t) for t in tasks]]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return type(one) is type(other)


@pytest.mark.parametrize("seed", seeds(2, 40))
@pytest.mark.fuzz
def test_eight_threads_convert_at_once(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(WAYS), (8,), generator=draws).tolist()
    ways = [WAYS[number] for number in chosen]
    models = [make() for make, _ in ways]
    with recorded_changes() as places:
        alone = [run(model) for model, (_, run) in zip(models, ways, strict=True)]
        before = process_state(places)
        tasks = [
            lambda model=model, run=run: run(model)
            for model, (_, run) in zip(models, ways, strict=True)
        ]
        found = in_threads(tasks)
        assert not differences(before, process_state(places))
    assert all(map(same, alone, found))


def test_first_calls_in_eight_threads_make_one_program() -> None:
    for program in (
        amprewrite.convert(mixed(), "promote"),
        amprewrite.convert(mixed()),
        amprewrite.convert(mixed().train(), args=(X,)).eval(),
    ):
        found = in_threads([lambda run=program: run(X)] * 8)
        assert all(torch.equal(one, found[0]) for one in found)
        mode = program.plan.mode
        assert len([plan for plan in program.plans if plan.mode == mode]) == 1


def ordinary(model: Any, grown: Any) -> list[Any]:
    """Return what a thread sees that has nothing to do with conversions."""
    hooked = list[int]()
    weight = grown[0].weight
    handle = weight.register_hook(lambda _: hooked.append(1))
    checkpoint(grown, X, use_reentrant=False).sum().backward()
    handle.remove()
    with torch.inference_mode():
        out = model(X)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.warn("hear me", stacklevel=1)
    return [
        torch.equal(out, EXPECTED[0]),
        out.is_inference(),
        bool(hooked),
        bool(torch.compiler.is_compiling()),
        torch.backends.mha.get_fastpath_enabled(),
        bool(heard),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
    ]


EXPECTED: list[Any] = []


def test_a_thread_that_does_not_convert_sees_no_difference() -> None:
    model, grown = attending(), mixed()
    with torch.inference_mode():
        EXPECTED[:] = [model(X)]
    alone = ordinary(model, grown)
    stop, seen = threading.Event(), list[Any]()

    def watch() -> None:
        while not stop.is_set():
            seen.append(ordinary(model, grown))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for make, run in WAYS:
            if make is not casting:  # verify sets torch's default dtype meanwhile
                run(make())
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 10
    assert all(found == alone for found in seen)
