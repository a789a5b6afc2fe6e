"""Programs with packed weights beside their plans, and the state that they keep."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.api import graph_text
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, pack_layers
from tests.packing import pack_float32, packed_names, stand_in
from tests.torch_programs import Program

X = torch.linspace(-1, 1, 6 * 64).reshape(6, 64).sin()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self.turned = nn.Parameter(torch.randn(64, 64) / 8)
        self.bias = nn.Parameter(torch.zeros(64))
        self.table = nn.Embedding(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.down(nn.functional.gelu(self.up(x)))
        h = torch.addmm(self.bias, h, self.turned)
        return h @ self.table.weight.T + self.table.weight[0]


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_float32(monkeypatch)


def converted(model: nn.Module, policy: str = "off", **options: Any) -> Any:
    made: Any = amprewrite.convert(model.eval(), policy, args=(X,), **options)
    return made


@torch.no_grad()
def check(made: Any, model: nn.Module) -> None:
    """Check two calls of a packed program, against the model in float64."""
    wanted = copy.deepcopy(model).double()(X.double())
    for _ in range(2):
        torch.testing.assert_close(made(X).double(), wanted, rtol=2e-6, atol=4e-6)
    assert packed_names(made) == ["turned", "up.weight", "down.weight"]


@pytest.mark.usefixtures("float32")
def test_a_program_packs_its_weights_and_follows_what_is_done_to_them() -> None:
    model = Model().eval()
    made = converted(copy.deepcopy(model))
    check(made, model)
    state = {name: held * -0.5 for name, held in model.state_dict().items()}
    for one in (model, made):
        one.load_state_dict(state)
    check(made, model)
    with torch.no_grad():
        for one in (model, made):
            one.up.weight[3].mul_(8)
            one.turned.copy_(torch.eye(64))
    check(made, model)
    for one in (model, made):
        one.down.weight = nn.Parameter(torch.full((64, 128), 0.25))
    check(made, model)
    check(copy.deepcopy(made), model)
    check(pickle.loads(pickle.dumps(made)), model)
    found = made.state_dict()
    assert all(torch.equal(found[n], held) for n, held in model.state_dict().items())
    del found
    check(made, model)
    with torch.no_grad():
        given = {n: held * 2 for n, held in made.named_parameters()}
        found = torch.func.functional_call(made, given, (X,))
        wanted = torch.func.functional_call(model, given, (X,))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    plain: Any = amprewrite.original(made)
    assert torch.equal(plain.up.weight, model.up.weight)


@pytest.mark.usefixtures("float32")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_derivatives_are_those_of_the_plan() -> None:
    model = Model()
    made, plan = converted(model), converted(model, lowering=False)
    check(made, model)
    x = X.clone().requires_grad_()
    found, wanted = (
        torch.autograd.grad(one(x).square().sum(), [x, one.up.weight])
        for one in (made, plan)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(made(X), plan(X))
    check(made, model)
    with torch.no_grad():
        rows = torch.func.vmap(made)(X[None])
        assert torch.equal(rows[0], torch.func.vmap(plan)(X[None])[0])
        check(made, model)
        forward = torch.autograd.forward_ad
        with forward.dual_level():
            found, wanted = (one(forward.make_dual(X, X)) for one in (made, plan))
            assert torch.equal(found, wanted)
            pairs = map(forward.unpack_dual, (found, wanted))
            assert torch.equal(*(pair.tangent for pair in pairs))


@pytest.mark.usefixtures("float32")
def test_exports_and_compilations_have_plain_weights_and_ops() -> None:
    model = Model()
    made = converted(model)
    check(made, model)
    with torch.no_grad():
        program: Any = torch.export.export(made, (X,))
    assert "mkldnn" not in program.graph_module.code
    kinds = {type(held) for held in program.state_dict.values()}
    assert kinds <= {Tensor, nn.Parameter}
    check(made, model)
    compiled: Any = torch.compile(made, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), made(X), rtol=1e-5, atol=1e-5)
    bare = converted(model, lowering=False)
    with torch.no_grad():
        bare(X)
    assert packed_names(bare) == []


@pytest.mark.usefixtures("float32")
def test_plan_report_and_graph_say_what_was_packed() -> None:
    made = converted(Model())
    packed, fused, added = made.plan.lowerings[-3:]
    assert (packed.name, packed.what) == ("packed", pack_layers.IN_BLOCKS)
    assert packed.ops == ("linear", "linear_1", "addmm")  # the table is also looked up
    assert fused.ops == ("linear", "gelu")
    assert added.ops == ("linear_1", "add")
    assert "in one kernel, rounded once" in made.plan.explain("gelu")
    assert "# packed: linear, linear_1, addmm" in graph_text(made, (X,), {})
    report = amprewrite.verify(Model().eval(), made, (X,))
    assert "3 ops with weights in the layout" in str(report)
    assert converted(Model(), lowering=False).plan.lowerings == ()
    assert converted(Model(), training=True).plan.lowerings == ()
    assert converted(Model(), compile=True).plan.lowerings == ()  # inductor packs


def test_bytes_do_not_grow_and_low_weights_are_held_once(monkeypatch) -> None:
    pack_float32(monkeypatch)
    made = converted(Model())

    def held() -> int:
        return sum(t.nbytes for t in plain()) + sum(map(kernels.size, matrices()))

    def plain() -> list[Tensor]:
        packed = packed_names(made)
        return [t.detach() for n, t in made.named_parameters() if n not in packed]

    def matrices() -> list[Tensor]:
        known = (vars(t).get("_amprewrite_packed") for t in made.parameters())
        return [one.values for one in known if one is not None]

    before = held()
    with torch.no_grad():
        made(X)
        made(X[:2])  # another program, with the same weights
    assert len(matrices()) == 3
    assert held() == before


def test_a_cpu_that_lacks_the_kernels_runs_the_plan(monkeypatch) -> None:
    if not kernels.has_kernels() or kernels.packs(torch.bfloat16):
        pytest.skip("no oneDNN kernels of x86, or all of them")
    monkeypatch.setattr(kernels, "packs", torch.bfloat16.__eq__)
    monkeypatch.setattr(pack_layers, "LEAST_ELEMENTS", 0)
    model = Model()
    made, plan = converted(model, "bf16"), converted(model, "bf16", lowering=False)
    record = made.plan.lowerings[-1]
    assert record.ops[:2] == ("linear", "linear_1")
    assert record.what.startswith("not packed: ")
    assert "bf16 path needs the cpu support" in record.what
    with torch.no_grad():
        assert torch.equal(made(X), plan(X))
    assert packed_names(made) == []


def test_low_layers_are_packed_where_all_their_readers_are(monkeypatch) -> None:
    stand_in(monkeypatch)

    def forward(m: Any, x: Tensor) -> Any:
        shared = m.a(x) + nn.functional.linear(x, m.a.weight) + x @ m.b.weight
        return shared, m.b(x), m.c(x), m.c.weight

    parts = {name: nn.Linear(64, 64) for name in "abc"}
    made = converted(Program(forward, **parts), "bf16")
    with torch.no_grad():
        made(X)
    assert packed_names(made) == ["a.weight"]  # b in two layouts, c is an output


def test_small_weights_and_float32_stay(monkeypatch) -> None:
    pack_float32(monkeypatch, least=64 * 128)
    made = converted(Model())
    assert made.plan.lowerings[-3].ops == ("linear", "linear_1")
    monkeypatch.undo()
    assert converted(Model()).plan.lowerings == ()


def test_programs_captured_at_a_call_pack_their_low_copies(monkeypatch) -> None:
    """Their weights are inputs, which dynamo looks at: the parameters stay plain."""
    stand_in(monkeypatch)
    torch.compiler.reset()
    packs: list[Tensor] = []
    pack = kernels.packed_matrix
    monkeypatch.setattr(
        kernels, "packed_matrix", lambda *w: packs.append(w[0]) or pack(*w)
    )
    model = Model().eval()
    made: Any = amprewrite.convert(copy.deepcopy(model), "bf16")
    made(X)  # with gradients, so that dynamo captures it
    with_args = converted(copy.deepcopy(model), "bf16")

    def check() -> None:
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(made(X), with_args(X))
        assert packed_names(made) == []

    check()
    records = [one for one in made.plan.lowerings if one.name in ("packed", "fused")]
    assert [one.ops for one in records] == [
        ("linear", "linear_1", "addmm"),
        ("linear", "gelu"),
    ]
    before = len(packs)
    check()
    assert len(packs) == before
    for one in (made, with_args):
        one.load_state_dict({n: -2 * held for n, held in model.state_dict().items()})
    check()
    assert len(packs) == before + 6  # the copies of either
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(made(x).sum(), [x])
    (wanted,) = torch.autograd.grad(with_args(x).sum(), [x])
    assert torch.equal(grad, wanted)
    check()
