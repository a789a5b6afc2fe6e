"""Applying a plan to the graph it was made for."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.rewrite.write import torch_dtype
from amprewrite.plan import Plan
from tests.torch_programs import LOW, Program, floats, in_full


def a_model(last: str = "softmax") -> Any:
    def forward(m: Any, x: Any) -> Any:
        return getattr(torch, last)(m.a(x), -1)

    return Program(forward, a=nn.Linear(8, 8)).eval()


def x() -> Any:
    return torch.randn(4, 8)


def a_plan(**fields: Any) -> Plan:
    return replace(amprewrite.inspect(a_model(), args=(x(),)), **fields)


def apply(plan: Plan, model: Any = None) -> Any:
    return amprewrite.convert(model or a_model(), args=(x(),), plan=plan)


def code(program: Any) -> str:
    return program.rewritten.code


def targets(program: Any) -> list[str]:
    nodes = program.rewritten.graph.nodes
    return [str(n.target) for n in nodes if n.op == "call_function"]


def test_a_plan_that_fits_is_applied() -> None:
    program = apply(a_plan())
    assert program.plan == a_plan()
    assert program.get_parameter("a.weight").dtype == LOW


def test_the_first_op_that_differs_is_named() -> None:
    with pytest.raises(PlanMismatchError) as caught:
        apply(a_plan(), a_model("log_softmax"))
    message = str(caught.value)
    assert "first at log_softmax, where the program has\n" in message
    assert "\n    softmax = aten.softmax.int(%linear: float32 2d) -> " in message
    assert "make a new plan with amprewrite.inspect" in str(caught.value)


@pytest.mark.parametrize("count", [0, 1])
def test_a_plan_of_another_length_is_refused(count: int) -> None:
    plan = a_plan(decisions=a_plan().decisions[:count])
    with pytest.raises(PlanMismatchError, match=f"has {count} decisions for 2 ops"):
        apply(plan)


def test_a_plan_edited_by_hand_is_obeyed() -> None:
    plan = amprewrite.inspect(
        a_model(), args=(x(),), overrides=[{"op": "linear", "class": "deny"}]
    )
    program = apply(replace(plan, warnings=()))
    assert program.get_parameter("a.weight").dtype == torch.float32
    value = x()
    model = a_model()
    program.load_state_dict(model.state_dict())
    assert torch.equal(in_full(program, value), in_full(model, value))


def test_each_cast_of_the_plan_stands_once_in_the_program() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x) + m.b(x), m.a(x).exp()

    model = Program(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(x(),))
    unfolded = len(program.plan.runtime_casts)
    assert targets(program).count("aten.to.dtype") == unfolded


def test_a_deny_op_is_told_its_dtype_instead_of_being_given_a_cast() -> None:
    program = amprewrite.convert(a_model(), args=(x(),))
    assert targets(program) == [
        "aten.to.dtype",
        "aten.linear.default",
        "aten.softmax.int",
    ]
    assert "dtype = torch.float32" in code(program)


def test_an_output_that_stands_twice_is_cast_once() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h, [h, x]

    model = Program(forward, a=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(x(),))
    assert targets(program).count("aten.to.dtype") == 2
    assert [v.dtype for v in floats(program(x()))] == [torch.float32] * 3


def test_a_list_value_is_cast_one_by_one() -> None:
    def forward(m: Any, x: Any) -> Any:
        return torch.stack(m.a(x).chunk(2, -1)).exp(), torch.cat(x.chunk(2, -1)) @ m.w

    model = Program(
        forward, a=nn.Linear(8, 8), w=nn.Parameter(torch.randn(4, 4))
    ).eval()
    program = amprewrite.convert(model, args=(x(),))
    for ours, theirs in zip(program(x()), model(x()), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def test_the_values_of_the_graph_say_the_dtypes_of_the_plan() -> None:
    program = amprewrite.convert(a_model(), args=(x(),))
    for node in program.rewritten.graph.nodes:
        if node.op == "call_function" and node.name in program.plan.by_op:
            wanted = program.plan.by_op[node.name].results
            assert str(node.meta["val"].dtype) == f"torch.{wanted[0]}"


def test_a_cast_of_one_result_leaves_the_op_of_several_as_it_is() -> None:
    def forward(m: Any, x: Any) -> Any:
        one, *_ = torch.relu(m.a(x)).unbind(0)
        return one, 2.0 ** torch.tanh(one)  # reads the result that is returned

    model = Program(forward, a=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(x(),), placement="paint")
    (node,) = [n for n in program.rewritten.graph.nodes if "unbind" in n.name]
    assert {one.dtype for one in node.meta["val"]} == {torch.bfloat16}


def test_factories_keep_the_dtype_that_they_made() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h + torch.zeros_like(h), torch.ones(3), torch.full_like(h, 2.0)

    model = Program(forward, a=nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(x(),))
    assert [v.dtype for v in program(x())] == [torch.float32] * 3


def test_neutral_names_are_torch_dtypes() -> None:
    assert torch_dtype("bfloat16") is torch.bfloat16
