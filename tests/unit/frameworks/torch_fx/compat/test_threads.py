"""Changes of torch that one thread sees."""

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import threads as compat_threads


def elsewhere(function: Callable[[], Any]) -> Any:
    """Return what ``function`` gives in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


class Owner:
    flag = False

    def name(self) -> str:
        """Return a name."""
        return "old"


def test_a_function_is_replaced_in_one_thread() -> None:
    before = vars(Owner)["name"]
    with compat_threads.replaced(Owner, "name", lambda _: "new"):
        assert Owner().name() == "new"
        assert elsewhere(Owner().name) == "old"
        with compat_threads.replaced(Owner, "name", lambda _: "newer"):
            assert Owner().name() == "newer"
            assert elsewhere(Owner().name) == "old"
        assert Owner().name() == "new"
    assert vars(Owner)["name"] is before


def test_a_function_that_a_release_does_not_have_is_named() -> None:
    wanted = r"torch [\d.+a-z]+ has no torch\.export\.gone, which a capture replaces"
    with (
        pytest.raises(UnsupportedError, match=wanted),
        compat_threads.replaced(torch.export, "gone", print),
    ):
        pass


def test_a_flag_is_set_in_one_thread() -> None:
    with compat_threads.flagged(Owner, "flag"):
        assert Owner.flag
        assert not elsewhere(lambda: bool(Owner.flag))
    assert Owner.flag is False


def test_a_flag_joins_other_conditions() -> None:
    """As model code does: ``tracing |= torch.compiler.is_exporting()``."""
    with compat_threads.flagged(Owner, "flag"):
        here: Any = Owner.flag
        found = False
        found |= here
        assert found is True
        assert (here | False, here & True, False & here) == (True, True, False)


def test_an_error_takes_changes_back() -> None:
    before = vars(Owner)["name"]
    changes = (
        compat_threads.replaced(Owner, "name", len),
        compat_threads.flagged(Owner, "flag"),
    )
    for change in changes:
        with pytest.raises(ValueError, match="inside"), change:
            raise ValueError("inside")  # as any model may
    assert vars(Owner)["name"] is before
    assert Owner.flag is False


def say() -> int:
    """Return the number of warnings that are heard."""
    heard: list[Any] = []
    show = warnings.showwarning
    warnings.showwarning = lambda *given, **_: heard.append(given)
    try:
        warnings.warn("one", UserWarning, stacklevel=1)
        warnings.warn("two", FutureWarning, stacklevel=1)
    finally:
        warnings.showwarning = show
    return len(heard)


def test_warnings_of_one_thread_are_ignored() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with compat_threads.silent():
            assert say() == 0
            assert elsewhere(say) == 2
        with compat_threads.silent(FutureWarning):
            assert say() == 1
        with compat_threads.silent(message="tw"):
            assert say() == 1
        assert warnings.filters == before
        with compat_threads.silent(), warnings.catch_warnings():
            warnings.simplefilter("always")
            assert say() == 2
        assert say() == 2


def test_what_one_thread_logs_is_dropped() -> None:
    logger, records = logging.getLogger("amprewrite.test"), list[Any]()
    handler: Any = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        with compat_threads.silenced("amprewrite.test"):
            logger.warning("here")
            elsewhere(lambda: logger.warning("there"))
        logger.warning("after")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == ["there", "after"]
    assert not logger.filters


def test_one_thread_captures_at_a_time() -> None:
    lock: Any = compat_threads.capturing()
    with lock, lock:
        assert not elsewhere(lambda: lock.acquire(blocking=False))
    running: list[int] = []

    @compat_threads.one_at_a_time
    def run() -> bool:
        running.append(1)
        threading.Event().wait(0.01)
        alone = len(running) == 1
        running.pop()
        return alone

    threads = [threading.Thread(target=lambda: found.append(run())) for _ in range(4)]
    found: list[bool] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_an_export_is_seen_by_its_thread() -> None:
    seen: list[Any] = []

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            """Note what threads see."""
            seen.append(bool(torch.compiler.is_compiling()))
            seen.append(elsewhere(lambda: bool(torch.compiler.is_compiling())))
            seen.append(bool(torch.compiler.is_exporting()))
            return x + 1

    with compat_threads.export_apart():
        torch.export.export(Model(), (torch.ones(2),), strict=False)
    assert seen[:3] == [True, False, True]
    assert not torch.compiler.is_compiling()


def test_model_code_hears_that_it_is_exported() -> None:
    def says() -> tuple[bool, bool]:
        return bool(torch.compiler.is_compiling()), bool(torch.compiler.is_exporting())

    with compat_threads.as_if_exported():
        assert says() == (True, True)
        assert elsewhere(says) == (False, False)
    assert says() == (False, False)


def test_a_compilation_is_seen_by_its_thread() -> None:
    seen: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(bool(torch.compiler.is_compiling()))
        seen.append(elsewhere(lambda: bool(torch.compiler.is_compiling())))
        return graph

    run: Any = torch.compile(lambda x: x + 1, backend=backend)
    with compat_threads.compile_apart():
        run(torch.ones(2))
    assert seen[-1] is False


def test_a_capture_beside_an_export_sees_nothing_of_it() -> None:
    found: list[Any] = []

    def inner() -> Any:
        found.append(torch.compiler.is_exporting())
        program = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
        with compat_threads.capturing():
            return program.module()

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            made = compat_threads.beside_export(inner)
            found.append((type(made.weight), torch.compiler.is_exporting()))
            return x + 1

    x = torch.ones(2)
    program = torch.export.export(Model(), (x,), strict=False).module()
    assert found == [False, (torch.nn.Parameter, True)]
    assert torch.equal(program(x), x + 1)


def test_an_error_beside_an_export_is_raised_in_it() -> None:
    with pytest.raises(ZeroDivisionError):
        compat_threads.beside_export(lambda: 1 // 0)
    assert not torch.compiler.is_exporting()
    assert compat_threads.beside_export(lambda: 1) == 1


def test_a_thread_is_told_from_others() -> None:
    here = threading.get_ident()
    assert compat_threads.is_here(here)
    assert not elsewhere(lambda: compat_threads.is_here(here))


def test_a_thread_that_captures_is_known() -> None:
    assert not compat_threads.is_capturing()
    with compat_threads.capturing():
        assert compat_threads.is_capturing()
        assert not elsewhere(compat_threads.is_capturing)
    assert compat_threads.beside_export(compat_threads.is_capturing)


def test_modes_of_a_thread_do_not_reach_what_runs_apart() -> None:
    here = threading.get_ident()
    with torch.no_grad():
        found = compat_threads.apart(
            lambda: (torch.is_grad_enabled(), threading.get_ident() == here)
        )
    assert found == (True, False)


def test_modes_are_left_outside_in_the_same_thread() -> None:
    modes = pytest.importorskip("torch._subclasses")
    with modes.FakeTensorMode():
        with compat_threads.without_modes():
            assert type(torch.ones(1)) is torch.Tensor
        assert type(torch.ones(1)) is modes.FakeTensor


def test_modes_are_left_outside_if_one_is_the_users() -> None:
    modes = pytest.importorskip("torch._subclasses")
    python_dispatch = pytest.importorskip("torch.utils._python_dispatch")

    class Users(python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    def depth() -> int:
        return torch._C._len_torch_dispatch_stack()

    with modes.FakeTensorMode(), compat_threads.without_users_modes():
        assert depth() == 1
    with modes.FakeTensorMode(), Users():
        with compat_threads.without_users_modes():
            assert depth() == 0
        assert depth() == 2


def test_modes_and_transforms_of_the_caller_are_left_outside() -> None:
    given, seen = torch.arange(3.0), list[Any]()

    def plain() -> Any:
        made = given * 2
        return type(made), made.is_inference(), torch.is_grad_enabled()

    def inside(x: Any) -> Any:
        seen.append(compat_threads.outside_modes(plain))
        return x

    with torch.inference_mode():
        inside(given)
    torch.func.vmap(inside)(given)
    subclasses = pytest.importorskip("torch._subclasses")
    with subclasses.FakeTensorMode():
        inside(given)
    assert seen == [(torch.Tensor, False, True)] * 3
