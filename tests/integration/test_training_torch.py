"""Training loops in float16 and bfloat16, as torch users write them, kept unchanged."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from amprewrite.training.torch import GradScaler, LowWeights
from tests.torch_programs import Program

ROWS = 256
SCALERS: dict[str, Callable[[], Any]] = {
    "ours": lambda: GradScaler("cpu"),
    "torch's": lambda: torch.amp.GradScaler("cpu"),
}


def task():
    """Return inputs and labels that a small network learns."""
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 16, generator=draws)
    return x, (x @ torch.randn(16, 4, generator=draws)).argmax(1)


def network(*, dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 4)]
    return nn.Sequential(*layers).train()


def fit(
    model: Any, run: Any, scaler: Any = None, *, steps: int = 60, divisor: float = 1.0
) -> float:
    """Return the loss after some steps; gradients are as small as ``divisor`` says."""
    x, labels = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3 * divisor, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), labels) / divisor
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return float(loss.detach()) * divisor


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:training in float16 without a loss scale")
def test_small_gradients_train_in_float16_with_a_scale_and_not_without():
    """The loss is divided by 2**17, which in exact arithmetic changes no step."""
    tiny, x = 2.0**17, task()[0]
    losses: dict[str, float] = {}
    for name, make in {**SCALERS, "plain": lambda: None}.items():
        model = network()
        program = amprewrite.convert(model, "fp16", args=(x,))
        losses[name] = fit(model, program, make(), divisor=tiny)
    model = network()
    full = fit(model, model, divisor=tiny)
    start = float(F.cross_entropy(network()(x).detach(), task()[1]))
    assert losses["ours"] == losses["torch's"]
    assert losses["ours"] == pytest.approx(full, rel=0.05)
    assert full < 0.1 * start
    assert losses["plain"] > 0.5 * start


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:training in float16 without a loss scale")
def test_digits_are_learned_from_a_small_loss_with_a_scale_and_not_without():
    """The mean loss of 1797 images, divided by 4096, and Adam, its eps divided, too."""
    held: Any = pytest.importorskip("sklearn.datasets").load_digits()
    x, labels = torch.tensor(held.data / 16).float(), torch.tensor(held.target)
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    losses: dict[str, list[float]] = {}
    for name in ("float32", "plain", "scaled"):
        torch.manual_seed(0)
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        model = nn.Sequential(*layers, nn.Linear(32, 10)).train()
        run: Any = model
        if name != "float32":
            run = amprewrite.convert(model, "fp16", args=(x,))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-8 / 4096)
        scaler = GradScaler("cpu", enabled=name == "scaled")
        losses[name] = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), labels)
            losses[name].append(float(loss.detach()))
            scaler.scale(loss / 4096).backward()
            scaler.step(optimizer)
            scaler.update()
    assert losses["float32"][-1] < 0.2 * losses["float32"][0]
    assert losses["scaled"][-1] == pytest.approx(losses["float32"][-1], rel=0.02)
    assert losses["plain"][-1] > 0.8 * losses["float32"][0]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", SCALERS)
def test_scalers_work_however_the_model_was_captured(name: str, *, at_once: bool):
    model, x = network(), task()[0]
    program = amprewrite.convert(model, "fp16", args=(x,) if at_once else None)
    assert fit(model, program, SCALERS[name]()) < 0.3


def test_the_first_steps_overflow_and_the_scale_comes_down():
    model, x = network(), task()[0]
    program = amprewrite.convert(model, "fp16", args=(x,))
    ours = GradScaler("cpu", init_scale=2.0**40, model=program)
    before = copy.deepcopy(model.state_dict())
    fit(model, program, ours, steps=3)
    assert ours.get_scale() == 2.0**37
    for name, held in model.state_dict().items():
        assert torch.equal(held, before[name])
    assert fit(model, program, ours) < 0.3


def test_batch_statistics_of_a_skipped_step_are_those_of_torch():
    """They are updated in the forward pass, before anyone knows of an overflow."""
    x, labels = task()
    moved: list[Any] = []
    for name in ("ours", "torch's"):
        torch.manual_seed(0)
        parts = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        model = nn.Sequential(*parts).train()
        program = amprewrite.convert(model, "fp16", args=(x,))
        optimizer = torch.optim.Adam(model.parameters())
        before = copy.deepcopy(list(model.parameters()))
        kind = GradScaler if name == "ours" else torch.amp.GradScaler
        scaler: Any = kind("cpu", init_scale=2.0**60)
        scaler.scale(F.cross_entropy(program(x), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert all(map(torch.equal, model.parameters(), before))
        assert not optimizer.state
        moved.append(model.get_buffer("1.running_mean").clone())
    assert moved[0].abs().max() > 0
    assert torch.equal(moved[0], moved[1])


@pytest.mark.parametrize("at_once", [True, False])
def test_a_skipped_step_changes_nothing_of_a_model_that_the_scaler_knows(
    *, at_once: bool
):
    x, labels = task()
    parts = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
    model = nn.Sequential(*parts).train()
    program = amprewrite.convert(model, "fp16", args=(x,) if at_once else None)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**60, model=program)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        scaler.scale(F.cross_entropy(program(x), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**58
    assert not optimizer.state
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    scaler.update(2.0**10)
    scaler.scale(F.cross_entropy(program(x), labels)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert int(model.get_buffer("1.num_batches_tracked")) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_skipped_step_that_is_compiled_changes_nothing_either(*, whole: bool):
    torch.compiler.reset()
    x, labels = task()
    parts = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
    model = nn.Sequential(*parts).train()
    program = amprewrite.convert(model, "fp16", args=(x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**60, model=program)
    run: Any = program
    if not whole:
        run = torch.compile(program, backend="aot_eager", fullgraph=True)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(run(x), labels)).backward()
        scaler.step(optimizer)
        scaler.update()

    call: Any = torch.compile(step, backend="aot_eager") if whole else step
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        call()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    scaler.update(2.0**10)
    call()
    assert int(model.get_buffer("1.num_batches_tracked")) == 1
    assert not torch.equal(model.get_parameter("0.weight"), before["0.weight"])


def test_buffers_stay_changed_if_one_of_two_steps_was_made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    norm, linear = (torch.optim.SGD(part.parameters(), 0.1) for part in model)
    scaler = GradScaler("cpu", init_scale=1.0, model=model)
    (scaler.scale(model(torch.randn(8, 4)).sum())).backward()
    weight = next(model.parameters())
    weight.grad = torch.full_like(weight, torch.inf)
    scaler.step(norm)
    scaler.step(linear)
    scaler.update()
    assert int(model.get_buffer("0.num_batches_tracked")) == 1


def test_accumulated_gradients_are_those_of_the_whole_batch():
    x, labels = task()
    model = network()
    program = amprewrite.convert(model, args=(x[: ROWS // 4],))
    scaler = GradScaler("cpu", enabled=False)
    for part in range(4):
        rows = slice(part * ROWS // 4, (part + 1) * ROWS // 4)
        scaler.scale(F.cross_entropy(program(x[rows]), labels[rows]) / 4).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x), labels).backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        off = (gradient - parameter.grad).norm() / parameter.grad.norm()
        assert off < 16 * 2.0**-8


def test_two_losses_and_two_optimizers_share_a_scale():
    def forward(m: Any, x: Any) -> Any:
        hidden = m.body(x).relu()
        return m.one(hidden), m.two(hidden)

    torch.manual_seed(0)
    parts = {n: nn.Linear(16, 16 if n == "body" else 4) for n in ("body", "one", "two")}
    model: Any = Program(forward, **parts).train()
    x, labels = task()
    program = amprewrite.convert(model, "fp16", args=(x,))
    heads = [*model.one.parameters(), *model.two.parameters()]
    optimizers = [
        torch.optim.SGD(model.body.parameters(), lr=0.5),
        torch.optim.Adam(heads, lr=0.02),
    ]
    scaler, losses = GradScaler("cpu", model=program), list[float]()
    for _ in range(40):
        model.zero_grad()
        one, two = program(x)
        pair = [F.cross_entropy(one, labels), F.cross_entropy(two, labels.flip(0))]
        for number, loss in enumerate(scaler.scale(pair)):
            loss.backward(retain_graph=number == 0)
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        losses.append(float(pair[0].detach()))
    assert losses[-1] < 0.6 * losses[0]


def test_a_run_goes_on_bit_by_bit_from_a_checkpoint(tmp_path: Any):
    def begin():
        model = network(dropout=0.5)
        program = amprewrite.convert(model, "fp16", args=(task()[0],))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
        return model, program, optimizer, scaler

    def go(program: Any, optimizer: Any, scaler: Any, first: int) -> None:
        x, labels = task()
        for step in range(first, first + 12):
            torch.manual_seed(step)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(program(x), labels)).backward()
            scaler.step(optimizer)
            scaler.update()

    model, program, optimizer, scaler = begin()
    go(program, optimizer, scaler, 0)
    held = {
        "model": program.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    torch.save(held, tmp_path / "checkpoint.pt")
    go(program, optimizer, scaler, 12)
    again, program, optimizer, scaler = begin()
    held = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    program.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    scaler.load_state_dict(held["scaler"])
    go(program, optimizer, scaler, 12)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def steps(
    model: Any, program: Any, *, backend: str = "", scaled: bool = False
) -> list[float]:
    """Return the losses of some whole steps, compiled by ``backend``."""
    x, labels = task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=2.0**23, enabled=scaled)

    def step(x: Any, labels: Any) -> Any:
        loss = F.cross_entropy(program(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run: Any = torch.compile(step, backend=backend) if backend else step
    return [float(run(x, labels)) for _ in range(6)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not")
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("backend", "scaled"),
    [
        ("aot_eager", True),
        ("aot_eager", False),
        pytest.param("inductor", False, marks=pytest.mark.slow),
    ],
)
def test_a_whole_step_can_be_compiled(backend: str, *, at_once: bool, scaled: bool):
    found: list[list[float]] = []
    for compiled in ("", backend):
        torch.compiler.reset()
        model, x = network(), task()[0]
        policy = "fp16" if scaled else "bf16"
        program = amprewrite.convert(model, policy, args=(x,) if at_once else None)
        found.append(steps(model, program, backend=compiled, scaled=scaled))
    assert found[1] == pytest.approx(found[0], rel=1e-2)
    assert found[1][-1] < found[1][0]


def test_gradients_pass_through_a_frozen_part_that_is_stored_low():
    torch.manual_seed(0)
    head: Any = nn.Linear(16, 8).train()
    x = task()[0]
    body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    body.eval().requires_grad_(requires_grad=False)
    folded = amprewrite.convert(body, args=(head(x).detach(),), training=False)
    assert {p.dtype for p in folded.parameters()} == {torch.bfloat16}
    body(head(x)).square().mean().backward()
    expected = head.weight.grad.clone()
    head.zero_grad()
    folded(head(x)).square().mean().backward()
    assert (head.weight.grad - expected).norm() < 2**-6 * expected.norm()
    assert not any(p.requires_grad for p in folded.parameters())


def test_low_weights_train_below_full_norms():
    """Linear layers stored in bfloat16; policy promote casts what meets."""
    torch.manual_seed(0)
    linear = [nn.Linear(16, 32).bfloat16(), nn.Linear(32, 4).bfloat16()]
    model = nn.Sequential(linear[0], nn.LayerNorm(32), nn.GELU(), linear[1]).train()
    x, labels = task()
    program = amprewrite.convert(model, "promote", args=(x.bfloat16(),))
    optimizer = LowWeights(torch.optim.AdamW(model.parameters(), lr=1e-2), "kahan")
    losses: list[float] = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(program(x.bfloat16()).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert model.get_parameter("1.weight").dtype == torch.float32
    assert model.get_parameter("0.weight").dtype == torch.bfloat16
    assert losses[-1] < 0.2 * losses[0]
