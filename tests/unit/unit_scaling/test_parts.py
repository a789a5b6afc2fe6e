"""Parts of the pass that both frameworks share: calls, rules, the plan."""

import pytest

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.unit_scaling.graph.scales import resolve
from amprewrite.unit_scaling.graph.units import differentiable
from amprewrite.unit_scaling.program import (
    OpCall,
    Settings,
    gather,
    masked,
    plan_scales,
    product,
    quotient,
    rule_by_table,
    unscaled,
)
from amprewrite.unit_scaling.rules import masked_softmax

SHAPES = {"x": ("s0", 4), "row": (4,), "i": (8, 4), "total": (), "n": (), "y": ()}


class Call(OpCall):
    """The last op of a program."""

    def __init__(self, graph):
        self.op, self.read = graph.ops[-1], graph

    @property
    def graph(self):
        return self.read

    @property
    def differentiable(self):
        return differentiable(self.read)


def program(*lines):
    """Return the graph of lines ``y = sum x``; n is an integer."""
    values = {
        name: Value(name, "int64" if name == "n" else "float32", SHAPES[name], "input")
        for name in ("x", "row", "i", "n")
    }
    ops = []
    for line in lines:
        result, _, name, *operands = line.split()
        values[result] = Value(result, "float32", SHAPES.get(result, SHAPES["x"]))
        ops.append(Op(result, name, f"aten.{name}", tuple(operands), (result,)))
    return ProgramGraph(values, tuple(ops), (ops[-1].results[0],))


def sizes(value, axis):
    return {("x", 0): 16, ("z", 0): 16}[value, axis]


def test_a_factor_of_both_of_a_product_counts_copies():
    found = product(Call(program("z = mul x row")))
    assert resolve(found.backward[1], sizes) == pytest.approx(16**-0.5)
    assert product(Call(program("z = mul x n"))) == unscaled(
        "a product with a constant, taken as of unit scale"
    )


def test_a_sum_by_a_number_of_the_data_is_a_mean():
    found = quotient(Call(program("total = sum x", "y = div total n")))
    assert resolve(found.backward[0], sizes) == 64
    assert not quotient(Call(program("z = div x row"))).backward


def test_a_look_up_and_a_mask():
    found = gather(Call(program("i = gather row n")))
    assert found.backward[0] == pytest.approx((4 / 32) ** 0.5)
    found = masked({4: 1, 2: 1}, 4)
    assert found.forward == masked_softmax({4: 1, 2: 1}, 4).forward
    assert found.why.startswith("3 of 4 logits")


def test_values_that_are_moved_keep_their_scale():
    assert rule_by_table({}, Call(program("z = permute x"))) == unscaled(
        "every result is a value of an operand"
    )
    assert rule_by_table({}, Call(program("z = sort x"))) is None
    assert rule_by_table({"sort": product}, Call(program("z = sort x row"))) is not None


def test_a_plan_is_made_of_the_rules():
    live = differentiable(program("z = permute x", "w = mul z row"))
    units, plan = plan_scales(
        live, lambda units, _: {u.name: unscaled("") for u in units}, Settings()
    )
    assert [unit.name for unit in units] == ["z", "w"]
    assert not plan.scales
    assert plan.edges == plan.cut == 3
