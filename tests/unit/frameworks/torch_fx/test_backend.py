"""The way through dynamo: as a backend, and for models converted without arguments."""

from importlib.metadata import entry_points
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.backend import amprewrite as backend
from amprewrite.errors import AmpWarning
from amprewrite.plan import Plan
from tests.torch_programs import LOW, Program, in_full, relative_error

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""

INSTALLED = "amprewrite" in entry_points(group="torch_dynamo_backends").names


def a_model() -> Any:
    def forward(m: Any, x: Any) -> Any:
        return torch.softmax(m.b(m.a(x).relu()), -1)

    return Program(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()


def x(rows: int = 4) -> Any:
    return torch.randn(rows, 8)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.mark.skipif(not INSTALLED, reason="the package is not installed")
def test_torch_compile_finds_it_by_name() -> None:
    model, plans, value = a_model(), [], x()
    options = {"policy": "bf16", "plans": plans}
    compiled: Any = torch.compile(model, backend="amprewrite", options=options)
    error = relative_error(in_full(compiled, value), in_full(model, value))
    assert 0 < error < 2 * ROUNDING
    assert [d.canonical for d in plans[0].lowered] == ["linear", "relu", "linear"]


def compiled(model: Any, **options: Any) -> tuple[Any, list[Plan]]:
    plans: list[Plan] = []

    def run(module: Any, inputs: Any) -> Any:
        return backend(module, inputs, plans=plans, **options)

    return torch.compile(model, backend=run), plans


def test_the_policy_is_an_option() -> None:
    model, value = a_model(), x()
    program, plans = compiled(model, policy="off")
    assert torch.equal(in_full(program, value), in_full(model, value))
    assert plans[0].policy == "off"


def test_overrides_are_an_option() -> None:
    program, plans = compiled(a_model(), overrides=[{"op": "relu", "class": "deny"}])
    in_full(program, x())
    assert plans[0].by_op["relu"].precision == "float32"


def test_an_unknown_option_is_refused() -> None:
    program, _ = compiled(a_model(), colour="red")
    with pytest.raises(Exception, match="colour"):
        in_full(program, x())


def test_parameters_are_read_as_weights_and_kept_low() -> None:
    program, plans = compiled(a_model())
    in_full(program, x())
    assert len([c for c in plans[0].casts if c.folding == "storage"]) == 4
    assert not [c for c in plans[0].runtime_casts if c.is_weight]


def test_a_low_copy_is_made_again_after_the_weight_was_written() -> None:
    model, value = a_model(), x()
    program, _ = compiled(model)
    before = in_full(program, value)
    assert torch.equal(in_full(program, value), before)
    with torch.no_grad():
        model.b.weight.mul_(3.0)
    after = in_full(program, value)
    assert relative_error(after, in_full(model, value)) < 2 * ROUNDING
    assert not torch.equal(after, before)


def test_with_gradients_weights_are_cast_as_they_are_used() -> None:
    model = a_model().train()
    program, plans = compiled(model)
    program(x()).square().sum().backward()
    assert plans[0].storage == ()
    assert model.a.weight.grad.dtype == torch.float32


def test_a_model_with_a_graph_break_is_rewritten_on_both_sides() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        scale = 2.0 if float(h.detach().sum()) > 1e9 else 1.0
        return m.b(h) * scale

    model = Program(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model)
    value = x()
    error = relative_error(in_full(program, value), in_full(model, value))
    assert 0 < error < 2 * ROUNDING
    assert len(program.plans) == 2
    graphs = {d.op.partition(".")[0] for d in program.plan.lowered}
    assert graphs == {"graph0", "graph1"}


def test_another_shape_is_captured_anew() -> None:
    model = a_model()
    program = amprewrite.convert(model)
    for rows in (4, 5, 6):
        value = x(rows)
        error = relative_error(in_full(program, value), in_full(model, value))
        assert error < 2 * ROUNDING


def test_module_paths_are_those_of_the_model() -> None:
    program = amprewrite.convert(a_model())
    in_full(program, x())
    assert [d.path for d in program.plan.decisions if d.canonical == "linear"] == [
        "a",
        "b",
    ]


def calls(model: Any) -> Any:
    def function(value: Any) -> Any:
        return model(value) * 2

    return function


@pytest.mark.parametrize("wrapped", [lambda model: model, calls])
def test_rules_by_path_match_what_torch_compile_captures(wrapped: Any) -> None:
    plans: list[Plan] = []
    rules = [{"path": "a", "class": "deny"}]
    options = {"plans": plans, "overrides": rules}
    program = torch.compile(wrapped(a_model()), backend=backend, options=options)
    in_full(program, x())
    (plan,) = plans
    assert plan.warnings == ()
    linears = [d for d in plan.decisions if d.canonical == "linear"]
    found = [(d.path, str(d.op_class)) for d in linears]
    assert found == [("a", "deny"), ("b", "allow")]


def test_a_plan_is_noted_once() -> None:
    program = amprewrite.convert(a_model())
    value = x()
    in_full(program, value)
    in_full(program, value)
    assert len(program.plans) == 1


def test_outputs_keep_their_dtype_and_weights_stay_the_models() -> None:
    model = a_model()
    program = amprewrite.convert(model)
    assert program(x()).dtype == torch.float32  # with gradients, by dynamo
    assert model.a.weight.dtype == torch.float32
    assert LOW not in {p.dtype for p in program.parameters()}


@pytest.mark.slow
def test_many_converted_models_leave_the_users_own_compilation_alone() -> None:
    """Dynamo gives up on one function after eight captures of it that are alive."""
    value = x()
    held = [amprewrite.convert(nn.Linear(8, 8).train()) for _ in range(9)]
    assert all(converted(value) is not None for converted in held)
    run: Any = torch.compile(nn.Linear(8, 8), backend="eager", fullgraph=True)
    assert run(value).shape == value.shape


@pytest.mark.parametrize("called_before", [False, True])
def test_a_call_inside_of_a_transform_runs_in_full_and_says_so(
    *, called_before: bool
) -> None:
    model, given = a_model(), x()
    converted = amprewrite.convert(model)
    if called_before:
        converted(given)
    with pytest.warns(AmpWarning, match=r"torch\.func transforms .* convert with args"):
        found = torch.func.vmap(lambda row: converted(row[None]))(given)
    assert torch.equal(found[:, 0], in_full(model, given))
    assert relative_error(converted(given), in_full(model, given)) > 0
