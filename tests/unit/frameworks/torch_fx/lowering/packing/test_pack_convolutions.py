"""Programs with packed convolutions beside their plans.

Operands are whole numbers: their sums are exact in any order, so that the kernels give
the bits of the plan, unless they round less often.
"""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.nn import functional

import amprewrite
from amprewrite.api import graph_text
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, pack_layers
from tests.packing import (
    REORDERED,
    change_all_layouts,
    pack_float32,
    packed_names,
    stand_in,
)
from tests.torch_programs import Program, relative_error, whole_numbers

WIDTH = 8
X = torch.arange(2 * WIDTH * 36).remainder(7).sub(3).float().reshape(2, WIDTH, 6, 6)
NAMES = ["one.weight", "two.weight", "three.weight"]


def whole(size: int = 3, **options: Any) -> Any:
    return whole_numbers(nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, **options))


class Residual(nn.Module):
    """Two convolutions with activations and a residual, and one read as views."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = whole(), whole(), whole(1, bias=False)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.one(x))
        y = self.act(self.two(y).add_(y))
        return self.three(y).view(x.shape[0], -1)


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_float32(monkeypatch)
    change_all_layouts(monkeypatch)


def converted(model: nn.Module, policy: str = "off", **options: Any) -> Any:
    made: Any = amprewrite.convert(model.eval(), policy, args=(X,), **options)
    return made


@torch.no_grad()
def check(made: Any, model: nn.Module, x: Tensor = X, *, packs: bool = True) -> None:
    """Check two calls of a packed program, and that its weights are packed."""
    for _ in range(2):
        assert torch.equal(made(x), model(x))
        assert made(x).stride() == model(x).stride()
    assert packed_names(made) == (NAMES if packs else [])


@pytest.mark.usefixtures("float32")
def test_a_program_packs_its_weights_and_follows_what_is_done_to_them() -> None:
    model = Residual().eval()
    made = converted(copy.deepcopy(model))
    check(made, model)
    state = {name: held * -2 for name, held in model.state_dict().items()}
    for one in (model, made):
        one.load_state_dict(state)
    check(made, model)
    with torch.no_grad():
        for one in (model, made):
            one.one.weight[3].mul_(8)
    check(made, model)
    for one in (model, made):
        one.two.weight = nn.Parameter(torch.ones(WIDTH, WIDTH, 3, 3))
    check(made, model)
    check(made, model, X[:1, :, :5].contiguous())  # another program
    check(made, model)
    check(copy.deepcopy(made), model)
    check(pickle.loads(pickle.dumps(made)), model, packs=False)
    found = made.state_dict()
    assert all(torch.equal(found[n], held) for n, held in model.state_dict().items())
    del found
    x = X.clone().requires_grad_()
    assert torch.equal(made(x), model(x))
    (found,), (wanted,) = (torch.autograd.grad(m(x).sum(), [x]) for m in (made, model))
    assert torch.equal(found, wanted)
    check(made, model)
    with torch.no_grad():
        program: Any = torch.export.export(made, (X,))
    assert "mkldnn" not in program.graph_module.code
    check(made, model)


@pytest.mark.usefixtures("float32")
def test_plan_report_and_graph_say_what_was_packed() -> None:
    model = Residual()
    made = converted(model)
    layout, others, packed, *fused = made.plan.lowerings
    names = ("conv2d", "conv2d_1", "conv2d_2")
    assert (layout.name, layout.ops, packed.ops) == ("channels_last", names, names)
    assert (packed.name, packed.what) == ("packed", pack_layers.IN_BLOCKS)
    assert others.ops == ("relu_", "add_", "relu__1")
    assert [one.ops for one in fused] == [
        ("conv2d", "relu_"),
        ("conv2d_1", "add_"),
        ("conv2d_1", "relu__1"),
    ]
    assert "in one kernel, rounded once" in made.plan.explain("add_")
    assert "in place, on the result of the kernel" in made.plan.explain("relu__1")
    assert "# packed: conv2d, conv2d_1, conv2d_2" in graph_text(made, (X,), {})
    report = amprewrite.verify(model, made, (X,))
    assert "3 ops with weights in the layout" in str(report)
    assert converted(model, lowering=False).plan.lowerings == ()
    assert converted(model, training=True).plan.lowerings == ()


@pytest.mark.usefixtures("float32")
def test_bytes_are_held_once() -> None:
    made = converted(Residual())
    with torch.no_grad():
        made(X)
    held = [vars(t)["_amprewrite_packed"] for t in made.parameters() if t.dim() > 1]
    sizes = sum(kernels.size(one.values) for one in held)
    plain = sum(t.nbytes for t in Residual().parameters() if t.dim() > 1)
    assert sizes == plain + made.plan.lowerings[2].bytes


@pytest.mark.usefixtures("float32")
def test_rows_and_columns_may_vary() -> None:
    rows, high = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("high", min=3)
    model = Residual().eval()
    made = converted(copy.deepcopy(model), dynamic_shapes=(({0: rows, 2: high}),))
    for x in (X, torch.cat((X, X))[:3, :, :4], X[:, :, :5], X):
        check(made, model, x)
    assert len(made.plans) == 1


def views_and_writes(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    view = y.view(2, -1)
    z = m.b(y.relu_())  # which writes to the view
    w = m.a(z)
    w[:, :2].zero_()
    return view, z.transpose(2, 3), w, m.b(w).relu().flatten(1), m.a(x + 1)


@pytest.mark.usefixtures("float32")
def test_what_others_read_and_write_is_as_in_the_plan() -> None:
    model = Program(views_and_writes, a=whole(), b=whole())
    made, plan = converted(model), converted(model, lowering=False)
    with torch.no_grad():
        for found, expected in zip(made(X), plan(X), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    assert packed_names(made) == ["a.weight", "b.weight"]


def up_and_down(m: Any, x: Tensor) -> Any:
    y = functional.silu(m.norm(m.a(x)))
    small = m.b(functional.avg_pool2d(y, 2))
    wide = torch.cat((functional.interpolate(small, scale_factor=2.0), y), 1)
    return m.c(wide), functional.adaptive_avg_pool2d(m.c(wide * 2), 1).flatten(1)


@pytest.mark.usefixtures("float32")
def test_ops_between_convolutions_keep_the_layout() -> None:
    torch.manual_seed(0)
    layers = {name: nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for name in "ab"}
    layers["c"] = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)
    model = Program(up_and_down, norm=nn.GroupNorm(2, WIDTH), **layers)
    made, plan = converted(model), converted(model, lowering=False)
    others = made.plan.lowerings[1].ops
    assert [name.rstrip("_0123456789") for name in others] == [
        "group_norm",
        "silu",
        "avg_pool2d",
        "upsample_nearest2d",
        "cat",
        "mul",
        "adaptive_avg_pool2d",
    ]
    with torch.no_grad():
        for found, expected in zip(made(X), plan(X), strict=True):
            torch.testing.assert_close(found, expected, **REORDERED)
            assert found.stride() == expected.stride()


def test_low_convolutions_round_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum and an activation after a low convolution are rounded with it."""
    stand_in(monkeypatch)
    change_all_layouts(monkeypatch)
    torch.manual_seed(0)
    layers = {name: nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for name in "abc"}

    def forward(m: Any, x: Tensor) -> Tensor:
        y = functional.gelu(m.a(x))
        return m.c(functional.relu(m.b(y) + y))

    model = Program(forward, **layers).eval()
    made = converted(model, "bf16")
    plan = converted(model, "bf16", lowering=False)
    fused = [one.ops for one in made.plan.lowerings if one.name == "fused"]
    assert fused == [("conv2d", "gelu"), ("conv2d_1", "add"), ("conv2d_1", "relu")]
    exact = copy.deepcopy(model).double()
    for held in exact.parameters():
        held.data = held.data.to(torch.bfloat16).double()
    x = X.div(4).sin()
    with torch.no_grad():
        wanted = exact(x.to(torch.bfloat16).double())
        error = relative_error(made(x), wanted)
        assert packed_names(made) == ["a.weight", "b.weight", "c.weight"]
        assert error < 0.95 * relative_error(plan(x), wanted)


def test_float32_is_packed_where_it_pays_by_default() -> None:
    if not kernels.has_kernels():
        pytest.skip("no oneDNN kernels of x86 here")
    layers = {name: nn.Conv2d(64, 64, 3, padding=1) for name in "abcd"}

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in (m.a, m.b, m.c, m.d):
            x = layer(x).relu()
        return x

    model, x = Program(forward, **layers).eval(), torch.randn(1, 64, 56, 56)
    made: Any = amprewrite.convert(copy.deepcopy(model), "off", args=(x,))
    assert made.plan.lowerings[0].ops == ("conv2d", "conv2d_1", "conv2d_2", "conv2d_3")
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), **REORDERED)
        made(x[:, :, :9, :9])  # too small: plain layers read the same weights
        torch.testing.assert_close(made(x), model(x), **REORDERED)
