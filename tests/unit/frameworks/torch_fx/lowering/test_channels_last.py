"""Convolutions with the channels last.

Operands are small whole numbers: their sums are exact in any order, so that all kernels
of a convolution give the same bits.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering import channels_last
from amprewrite.frameworks.torch_fx.lowering.lower_graph import lower_graph
from tests.torch_programs import Program, whole_numbers

WIDTH = 4
X = torch.arange(2 * WIDTH * 36).remainder(7).sub(3).float().reshape(2, WIDTH, 6, 6)


def whole(kind: Any = nn.Conv2d, **options: Any) -> Any:
    """Return a 3x3 convolution with whole numbers."""
    return whole_numbers(kind(WIDTH, WIDTH, 3, padding=1, **options))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = whole(), whole(bias=False), whole()
        self.norm, self.pool = nn.BatchNorm2d(WIDTH), nn.MaxPool2d(3, 2, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        y = self.act(self.norm(self.one(x)))
        return self.act(self.two(y).add_(x)).view(x.shape[0], -1)


@pytest.fixture(autouse=True)
def _small_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(channels_last, "_is_measured", lambda: True)


def converted(model: nn.Module, policy: str = "bf16", **options: Any) -> Any:
    return amprewrite.convert(model.eval(), policy, args=(X,), **options)


def copies(made: Any) -> list[Any]:
    """Return the layouts of the copies in the lowered graph of a converted model."""
    program = next(iter(made._amprewrite.shared.programs))
    trains = program.plan.training
    lowered = lower_graph(program.rewritten.graph, program, trains=trains).graph
    found = [node for node in lowered.nodes if channels_last.COPY in node.meta]
    return [node.kwargs["memory_format"] for node in found]


def test_layouts_change_once_around_a_network_of_convolutions() -> None:
    made = converted(Residual())
    plan = converted(Residual(), lowering=False)
    assert copies(made) == [torch.channels_last, torch.contiguous_format]
    with torch.no_grad():
        torch.testing.assert_close(made(X), plan(X), rtol=2**-8, atol=0)
        assert made(X).stride() == plan(X).stride()
    made.load_state_dict({n: 2 * held for n, held in made.state_dict().items()})
    plan.load_state_dict({n: 2 * held for n, held in plan.state_dict().items()})
    with torch.no_grad():
        torch.testing.assert_close(made(X), plan(X), rtol=2**-8, atol=0)


@pytest.mark.parametrize("derivative", [False, True])
def test_calls_under_transforms_compute_the_same(derivative: bool) -> None:  # noqa: FBT001  # of a table
    made = converted(nn.Sequential(whole(), nn.ReLU(), whole()))
    images = torch.stack((X, -X, X * 2))
    call: Any = made
    if derivative:
        call = torch.func.grad(lambda x: made(x).square().sum())
    with torch.no_grad():
        found = torch.func.vmap(call)(images)
        assert copies(made) == [torch.channels_last, torch.contiguous_format]
        assert torch.equal(found, torch.stack([call(x) for x in images]))


def write_to_a_part(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    y[:, :2].zero_()
    return m.b(y), y


def write_to_what_has_a_view(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    view = y.view(2, -1)
    return m.b(y.relu_()), view


def take_views(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    return y.view(2, -1), m.b(y.transpose(2, 3)), m.b(y.relu()).flatten(1)


@pytest.mark.parametrize(
    "forward", [write_to_a_part, write_to_what_has_a_view, take_views]
)
def test_what_others_read_and_write_is_as_in_the_plan(forward: Any) -> None:
    model = Program(forward, a=whole(), b=whole())
    made, plan = converted(model), converted(model, lowering=False)
    assert torch.channels_last in copies(made)
    with torch.no_grad():
        for found, expected in zip(made(X), plan(X), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_an_extent_may_vary() -> None:
    rows = torch.export.Dim("rows", min=2, max=8)
    made = converted(Residual(), dynamic_shapes=(({0: rows}),))
    plan = converted(Residual(), lowering=False, dynamic_shapes=(({0: rows}),))
    assert torch.channels_last in copies(made)
    x = torch.cat((X, X, X))[:5]
    with torch.no_grad():
        torch.testing.assert_close(made(x), plan(x), rtol=2**-8, atol=0)
    assert len(made.plans) == 1


def test_what_does_not_pay_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not copies(converted(Program(lambda m, x: m.a(x), a=whole(groups=WIDTH))))
    assert not copies(converted(Program(lambda m, x: m.a(x), a=whole()), "off"))
    assert not copies(converted(Residual(), training=True))
    monkeypatch.setattr(channels_last, "LEAST_PRODUCTS", 10**6)
    assert not copies(converted(Residual()))
