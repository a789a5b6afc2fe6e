"""From a program to the neutral graph, as text."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite import full_precision
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir import parse_graph, print_graph
from amprewrite.ir.graph import UNKNOWN_TRIPS

X = jnp.ones((2, 3))
W = jnp.ones((3, 3))
SOURCE = re.compile(r' source="[^"]*"')


def graph_of(function, *args):
    return read(inline(jax.make_jaxpr(function)(*args)), {})


def only(function, *args):
    (op,) = graph_of(function, *args).ops
    return op


LAYER = """\
%input_0: f32[2,3] input
%input_1: f32[3,3] input
dot_general = matmul(%input_0, %input_1) -> %dot_general: f32[2,3]
  | native="dot_general" path="block" contracted=3 accumulates=true
tanh = tanh(%dot_general) -> %tanh: f32[2,3]
  | native="tanh" path="block"
mul = mul(%tanh) -> %mul: f32[2,3]
  | native="mul" literals=[2.0]
reduce_sum = sum(%mul) -> %reduce_sum: f32[2]
  | native="reduce_sum"
return %reduce_sum, %input_0
"""

LOOP = """\
%input_0: f32[2,3] input
%input_1: f32[3,3] input
scan.in0 = enter(%input_1) -> %scan.in0: f32[3,3]
  | native="scan" region="scan"
scan.in1 = carry(%input_0) -> %scan.in1: f32[2,3]
  | native="scan" region="scan"
dot_general = matmul(%scan.in1, %scan.in0) -> %dot_general: f32[2,3]
  | native="dot_general" region="scan" contracted=3 accumulates=true trips=4
scan.out0 = carry(%dot_general) -> %scan: f32[2,3]
  | native="scan" trips=4 turns=["scan.in1"]
scan.out1 = leave(%dot_general) -> %scan_1: f32[4,2,3]
  | native="scan" trips=4
return %scan, %scan_1
"""


def layer(x, w):
    with jax.named_scope("block"):
        h = jnp.tanh(x @ w)
    return (h * 2.0).sum(-1), x


def loop(x, w):
    def turn(h, _):
        h = h @ w
        return h, h

    return lax.scan(turn, x, None, length=4)


@pytest.mark.parametrize(("function", "text"), [(layer, LAYER), (loop, LOOP)])
def test_a_program_reads_as_this_text(function, text):
    graph = graph_of(function, X, W)
    found = SOURCE.sub("", print_graph(graph))
    assert found == text
    assert print_graph(parse_graph(found)) == found


def test_lines_are_the_users():
    (op,) = graph_of(lambda x: x * 2.0, X).ops
    assert op.source.startswith("test_read.py:")


def test_turns_of_nested_loops_multiply_and_a_branch_runs_once():
    def inner(x, _):
        return lax.cond(x.sum() > 0, jnp.sin, jnp.tanh, x), None

    def outer(x, _):
        return lax.scan(inner, x, None, length=3)[0] + 1, None

    def nested(x):
        start, _ = lax.scan(outer, x, None, length=5)
        return lax.while_loop(lambda x: x.sum() > 0, lambda x: x - x.mean(), start)

    trips = {op.canonical: op.trips for op in graph_of(nested, X).ops}
    assert (trips["add"], trips["sin"], trips["tanh"]) == (5, 15, 15)
    assert trips["sub"] == UNKNOWN_TRIPS


def test_a_loop_is_entered_before_it_and_left_at_each_turn():
    ops = graph_of(loop, X, W).op_by_name
    assert (ops["scan.in0"].trips, ops["scan.in1"].trips) == (1, 1)
    assert (ops["scan.out0"].trips, ops["scan.out1"].trips) == (4, 4)


def test_a_loop_says_what_a_carry_becomes_and_what_ends_it():
    def run(x):
        return lax.while_loop(lambda s: s[0].sum() > 0, lambda s: (s[1], s[0]), (x, x))

    ops = graph_of(run, X).op_by_name
    assert ops["while.out0"].turns == ("while.test.in0", "while.body.in0")
    assert ops["while.out1"].turns == ("while.test.in1", "while.body.in1")
    assert [op.canonical for op in ops.values() if op.decides] == ["gt"]


def test_what_the_model_asks_for_is_a_fence():
    asked = only(lambda x, w: jnp.dot(x, w, precision="highest"), X, W)
    assert "HIGHEST" in asked.fence
    algorithm = lax.DotAlgorithmPreset.F32_F32_F32
    assert only(lambda x, w: jnp.dot(x, w, precision=algorithm), X, W).fence
    low = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    wide = only(lambda x, w: lax.dot(x, w, preferred_element_type=jnp.float32), *low)
    assert "preferred_element_type" in wide.fence
    assert not only(jnp.dot, X, W).fence
    same = only(lambda x, w: lax.dot(x, w, preferred_element_type=jnp.float32), X, W)
    assert not same.fence


def test_contracted_lengths():
    assert only(lambda x, y: jnp.einsum("ij,ij->", x, y), X, X).contracted == 6
    outer = only(lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), X, X)
    assert outer.contracted == 1


def test_casts_fills_and_marks():
    cast = only(lambda x: x.astype(jnp.float16), X)
    assert (cast.canonical, cast.dtype_argument) == ("cast", "float16")
    assert only(lambda: jnp.zeros(3)).canonical == "full"
    marked = only(full_precision(jnp.dot), X, W)
    assert marked.asked == "full"
    assert not marked.path


def test_what_promotion_noted_reaches_the_graph():
    from dataclasses import replace

    traced = inline(jax.make_jaxpr(lambda x, w: (2.0, x @ w, x))(X, W))
    (step,) = traced.steps
    noted = replace(step, wants=("float64", ""), conjugates=True)
    states = ((1, "input_0"), (0, "input_1"))  # a number is no value of the graph
    graph = read(replace(traced, steps=(noted,), states=states), {})
    assert graph.ops[0].reads == ("float64", "float32")
    assert graph.ops[0].canonical == "abs_square"
    assert graph.states == ((0, "input_0"),)


def test_closed_over_arrays_have_the_numbers_that_a_narrow_format_has_not():
    mask = np.triu(np.full((16, 16), np.finfo(np.float32).min, np.float32), 1)
    few, table = np.asarray([0.5, -1e9], np.float32), np.linspace(0, 0.9999, 100)
    same = np.full(128, 1e9, np.float32)
    arrays = (mask, few, table.astype(np.float32), np.arange(3), same)
    graph = graph_of(lambda: [jnp.sin(jnp.asarray(array)) for array in arrays])
    numbers = [value.numbers for value in graph.inputs("constant")]
    assert numbers == [(float(mask.min()),), (-1e9,), (), (), (1e9,)]
