"""Rules by path under torch.compile: they match as under convert."""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.backend import amprewrite as backend
from amprewrite.errors import AmpWarning
from amprewrite.plan import Plan
from tests.torch_programs import in_full

X = torch.ones(4, 8)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.breaks = breaks

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.mlp(x)


class Model(nn.Module):
    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(breaks=breaks) for _ in range(3)])
        self.named = nn.ModuleDict({"a b": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = self.layers[2](self.layers[1](self.layers[0](x)))
        return self.head(self.named["a b"](x))


class Outer(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x))


class Twice(nn.Module):
    """One module under two names, called four times."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Block()
        self.b, self.last = self.a, nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.last(self.b(self.b(self.a(self.a(x)))))


def rule(path: str, **keys: str) -> dict[str, Any]:
    return {"overrides": [{"path": path, "class": "deny", **keys}]}


def denied(plan: Plan) -> list[str]:
    """Paths of the linear layers that a rule keeps full."""
    rows = [d for d in plan.decisions if d.canonical == "linear"]
    return [d.path for d in rows if d.op_class == "deny"]


def compiled(model: Any, path: str) -> Plan:
    run: Any = torch.compile(model, backend=backend, options=rule(path))
    in_full(run, X)
    return amprewrite.plan_of(run)


PATHS = ["layers.1", "layers.2.mlp.0", "layers.*", "named.a b", "head", "*.mlp.*"]


@pytest.mark.parametrize("breaks", [False, True])
def test_rules_match_as_under_convert(breaks: bool) -> None:  # noqa: FBT001
    model = Model(breaks=breaks).eval()
    for path in PATHS:
        torch.compiler.reset()
        expected = amprewrite.convert(Model().eval(), args=(X,), **rule(path))
        found = compiled(model, path)
        assert denied(found) == denied(expected.plan) != []
        assert not [line for line in found.warnings if line.startswith("unused")]


def test_a_rule_for_one_of_equal_modules_runs_in_that_one_alone() -> None:
    model = Model(breaks=True).eval()
    run: Any = torch.compile(model, backend=backend, options=rule("layers.1"))
    expected: Any = amprewrite.convert(model, **rule("layers.1"))
    with_all: Any = amprewrite.convert(model)
    found = in_full(run, X)
    assert torch.equal(found, in_full(run, X))
    assert torch.equal(found, in_full(expected, X))
    assert not torch.equal(found, in_full(with_all, X))


def test_the_plan_has_every_module_behind_a_break() -> None:
    model = Model(breaks=True).eval()
    whole = amprewrite.convert(Model().eval(), args=(X,)).plan
    found = compiled(model, "head")
    assert [d.path for d in found.decisions] == [d.path for d in whole.decisions]


def test_a_rule_for_another_part_is_no_unused_one() -> None:
    run: Any = torch.compile(
        Model(breaks=True).eval(), backend=backend, options=rule("head")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmpWarning)
        in_full(run, X)
    torch.compiler.reset()
    run = torch.compile(
        Model(breaks=True).eval(), backend=backend, options=rule("haed")
    )
    with pytest.warns(AmpWarning, match="no module path is 'haed'"):
        in_full(run, X)


def test_paths_begin_at_the_compiled_module() -> None:
    inner = Model().eval()
    assert denied(compiled(Outer(inner).eval(), "inner.layers.1")) == [
        "inner.layers.1.mlp.0"
    ]
    part: Any = torch.compile(inner, backend=backend, options=rule("layers.1"))
    in_full(Outer(part).eval(), X)
    assert denied(amprewrite.plan_of(part)) == ["layers.1.mlp.0"]


@pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")  # of the function
def test_paths_of_a_function_begin_inside_its_model() -> None:
    model = Model(breaks=True).eval()
    assert denied(compiled(lambda x: model(x) * 2, "layers.1")) == ["layers.1.mlp.0"]


def test_a_module_with_two_names_goes_by_the_first() -> None:
    assert denied(compiled(Twice().eval(), "a")) == ["a.mlp.0"] * 4


def test_weights_of_each_module_are_kept_low() -> None:
    model = Model(breaks=True).eval()
    run: Any = torch.compile(model, backend=backend)
    before = in_full(run, X)
    with torch.no_grad():
        model.get_parameter("layers.1.mlp.0.weight").mul_(-1)
    assert not torch.equal(in_full(run, X), before)
    assert len(amprewrite.plan_of(run).storage) == 2 * 5  # weights and biases


def test_a_graph_is_run_by_another_model_too() -> None:
    models = [Model(breaks=True).eval() for _ in range(2)]
    options = rule("layers.1")
    run: Any = torch.compile(
        lambda model, x: model(x), backend=backend, options=options
    )
    for model in models:
        expected: Any = amprewrite.convert(model, **options)
        assert torch.equal(in_full(run, model, X), in_full(expected, X))


@pytest.mark.slow
def test_compiled_modules_share_what_is_equal(monkeypatch: Any) -> None:
    from amprewrite.frameworks.torch_fx.compat import compiling

    made: list[Any] = []
    compile_it = compiling.compile_with_inductor

    def noting(*args: Any) -> Any:
        made.append(args)
        return compile_it(*args)

    monkeypatch.setattr(compiling, "compile_with_inductor", noting)
    model = Model(breaks=True).eval()
    options = {**rule("layers.1"), "target": "compiled"}
    run: Any = torch.compile(model, backend=backend, options=options)
    low = in_full(run, X)
    assert len(made) == 4  # the norms, the blocks, the block that is full, the rest
    assert low.dtype == torch.float32
