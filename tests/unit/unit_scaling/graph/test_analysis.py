"""Cut edges, regions and residual additions, on programs written as text."""

from dataclasses import replace

import pytest

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.unit_scaling.graph.assign import (
    UnitRule,
    assign,
    cut_edges,
    find_residuals,
)
from amprewrite.unit_scaling.graph.units import Edge, differentiable, find_units


def program(text, inputs=("x",), parameters=("w",), shape=(4, 4)):
    """Return the graph of lines ``y = matmul x w``; the last is returned."""
    values = {n: Value(n, "float32", shape, "input") for n in inputs}
    values |= {n: Value(n, "float32", shape, "parameter") for n in parameters}
    ops = []
    for line in text.strip().splitlines():
        result, _, name, *operands = line.split()
        values[result] = Value(result, "float32", shape)
        ops.append(Op(result, name, f"aten.{name}", tuple(operands), (result,)))
    return ProgramGraph(values, tuple(ops), (ops[-1].name,))


def cut_of(graph):
    live = differentiable(graph)
    units = find_units(live)
    return {(e.value, e.unit) for e in cut_edges(live, units)}


def test_a_chain_is_all_cut_edges():
    graph = program("y = matmul x w\nz = matmul y v", parameters=("w", "v"))
    assert cut_of(graph) == {("x", "y"), ("w", "y"), ("y", "z"), ("v", "z")}


def test_a_parameter_that_is_used_twice_is_no_cut_edge():
    graph = program("y = matmul x w\nz = matmul y w")
    assert cut_of(graph) == {("x", "y")}


def test_two_uses_by_one_op_are_no_cut_edge():
    graph = program("y = matmul x w\nz = matmul y y")
    assert cut_of(graph) == {("x", "y"), ("w", "y")}


def test_both_paths_of_a_residual_are_no_cut_edges_and_weights_are():
    graph = program("a = matmul x w\nb = relu a\nc = matmul b v\ny = add a c",
                    parameters=("w", "v"))  # fmt: skip
    assert cut_of(graph) == {("x", "a"), ("w", "a"), ("v", "c")}


def test_a_loop_carry_is_closed_by_an_edge():
    live = differentiable(program("a = matmul x w\nb = matmul a v", parameters="wv"))
    units = find_units(live)
    assert Edge("a", "b", 0) in cut_edges(live, units)
    closed = cut_edges(live, units, [("b", "a")])
    assert Edge("a", "b", 0) not in closed
    assert Edge("v", "b", 1) in closed


def test_the_outputs_are_joined():
    graph = program("a = matmul x w\nb = matmul a v", parameters=("w", "v"))
    joined = ProgramGraph(graph.values, graph.ops, ("a", "b"))
    assert ("a", "b") in cut_of(graph)
    assert ("a", "b") not in cut_of(joined)


def test_a_written_out_gelu_is_one_region_and_no_residual():
    graph = program(
        "a = matmul x w\nc = integer_pow a\nd = mul c\ne = add a d\nf = tanh e\n"
        "g = mul a f\ny = matmul g w"
    )
    live = differentiable(graph)
    units = find_units(live)
    (region,) = [unit for unit in units if unit.is_region]
    assert [op.name for op in region.ops] == ["c", "d", "e", "f", "g"]
    assert region.edges == (Edge("a", "g", -1),)
    assert not find_residuals(live, units, cut_edges(live, units))


@pytest.mark.parametrize(
    ("choice", "ops"),
    [("where c a n", ["y"]), ("where c a b", ["b", "y"]), ("where m a n", [])],
)
def test_a_choice_by_its_own_argument_is_a_region(choice, ops):
    lines = f"a = matmul x w\nb = tanh a\nc = gt a\nn = zeros_like a\ny = {choice}"
    graph = program(lines, inputs=("x", "m"))
    truth = {
        name: Value(name, "bool", (4, 4), graph.values[name].kind) for name in "cm"
    }
    live = differentiable(replace(graph, values={**graph.values, **truth}))
    found = [unit for unit in find_units(live) if unit.is_region]
    assert [op.name for unit in found for op in unit.ops if op.name in "by"] == ops


def test_a_value_used_inside_and_outside_splits_a_region():
    graph = program("a = relu x\nb = tanh a\nc = matmul a w\ny = matmul c b")
    regions = [u for u in find_units(differentiable(graph)) if u.is_region]
    assert [u.name for u in regions] == ["a", "b"]


def test_a_norm_written_out_is_a_region_with_a_statistic():
    graph = program(
        "a = matmul x w\nb = integer_pow a\nc = mean b\nd = rsqrt c\ne = mul a d\n"
        "y = matmul e w"
    )
    (region,) = [u for u in find_units(differentiable(graph)) if u.is_region]
    assert region.name == "e"
    assert region.has_statistic


def test_a_mean_that_is_handed_on_is_no_region():
    graph = program("a = matmul x w\nb = integer_pow a\ny = mean b")
    assert [u.is_region for u in find_units(differentiable(graph))] == [
        False,
        True,
        False,
    ]


BLOCK = "a = matmul x w\nb = relu a\nc = matmul b v\n"


@pytest.mark.parametrize("order", ["a c", "c a"])
def test_a_residual_is_found_in_both_orders(order):
    live = differentiable(program(f"{BLOCK}y = add {order}", parameters=("w", "v")))
    units = find_units(live)
    (found,) = find_residuals(live, units, cut_edges(live, units))
    assert found.unit == "y"
    assert order.split()[found.skip] == "a"
    assert found.entries == (Edge("a", "b", -1),)


def test_a_sum_of_two_tables_is_no_residual():
    live = differentiable(program("a = add w v\ny = matmul a x", parameters=("w", "v")))
    units = find_units(live)
    assert not find_residuals(live, units, cut_edges(live, units))


def test_branches_that_are_joined_have_their_weights_at_the_sum():
    text = (
        "a = matmul x w\nn = relu a\nb = matmul n v\nc = matmul n u\n"
        "s = add a b\ny = add s c"
    )
    live = differentiable(program(text, parameters=("w", "v", "u")))
    units = find_units(live)
    found = find_residuals(live, units, cut_edges(live, units))
    assert [(r.unit, r.entries) for r in found] == [("s", ()), ("y", ())]


def test_gradients_come_from_the_loss_where_there_is_one():
    graph = program("a = matmul x w\ny = tanh a")
    values = dict(graph.values) | {"y": Value("y", "float32", ())}
    found = differentiable(ProgramGraph(values, graph.ops, ("a", "y")))
    assert found.outputs == ("y",)


RULE = UnitRule(0.25, {0: 0.5, 1: 0.125}, "closed form", "sums")


@pytest.mark.parametrize(
    ("constraint", "forward", "backward"),
    [
        ("auto", 0.25, 0.25),
        ("to_output_scale", 0.25, 0.25),
        ("to_grad_input_scale", 0.5, 0.5),
        ("amean", 0.375, 0.375),
        ("to_left_grad_scale", 0.25, 0.25),  # joins three factors: does not apply
        (None, 0.25, 0.5),
    ],
)
def test_a_constraint_joins_the_edges_that_are_not_cut(constraint, forward, backward):
    graph = program("a = matmul x w\nb = matmul a v\ny = add a b", parameters="wv")
    live = differentiable(graph)
    units = find_units(live)
    cut = cut_edges(live, units)
    residuals = find_residuals(live, units, cut)
    rules = {"a": RULE, "b": RULE}
    plan = assign(units, rules, cut, residuals, constraint=constraint)
    found = {s.place: (s.forward, s.backward) for s in plan if s.kind != "residual"}
    assert found["b", None] == (forward, 1.0)
    assert found["b", 0] == (1.0, backward)
    assert found["b", 1] == (1.0, 0.125)
    assert found["a", 0] == (1.0, 0.5)


def test_the_weights_of_a_residual_multiply_to_the_same_both_ways():
    graph = program("a = matmul x w\nb = matmul a v\ny = add a b", parameters="wv")
    live = differentiable(graph)
    units = find_units(live)
    cut = cut_edges(live, units)
    residuals = find_residuals(live, units, cut)
    plan = assign(units, {"a": RULE, "b": RULE}, cut, residuals, tau=0.75)
    found = {s.place: (s.forward, s.backward) for s in plan if s.kind == "residual"}
    assert found["y", 0] == pytest.approx((0.8, 0.8))
    assert found["y", 1] == pytest.approx((0.6, 1.0))
    assert found["b", 0] == pytest.approx((1.0, 0.6))


def test_a_sum_of_exponentials_is_no_function_of_one_number():
    graph = program("a = matmul x w\nb = logsumexp a\ny = sub a b")
    assert not [u for u in find_units(differentiable(graph)) if u.is_region]


def test_a_value_that_is_only_multiplied_has_the_factor_of_a_gate():
    graph = program("a = matmul x w\ng = sigmoid a\nb = matmul x v\ny = mul g b",
                    parameters="wv")  # fmt: skip
    live = differentiable(graph)
    units = find_units(live)
    rules = {"a": RULE, "b": RULE, "y": UnitRule(1.0, {}, "closed form")}
    rules["g"] = UnitRule(4.0, {-1: 5.0}, "quadrature", gate=2.0)
    plan = assign(units, rules, cut_edges(live, units), ())
    assert [s.forward for s in plan if s.place == ("g", None)] == [2.0]
