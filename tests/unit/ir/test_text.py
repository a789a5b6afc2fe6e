"""Printing a program graph and parsing it back."""

from dataclasses import fields, replace

import pytest

from amprewrite.errors import GraphError
from amprewrite.ir import Op, ProgramGraph, Value, parse_graph, print_graph, text

CANONICAL_TEXT = """\
%x: f32[2,s0] input
%mask: b1[] constant
%w: bf16[4,3] parameter
%twin: bf16[4,3] alias %w parameter
seed = manual_seed() ->
linear = linear(%x, %w) -> %h: f32[2,4]
  | native="aten.linear.default" path="head" contracted=3
parts = split(%h) -> %p: f32[2,2] alias %h; %q: f32[2,2] alias %h
  | source="model.py:3" mutates=[0] operand_rule="any" literals=[1e-08, -3.0]
return %p, %q
"""


def test_text_comes_back_as_it_was() -> None:
    assert print_graph(parse_graph(CANONICAL_TEXT)) == CANONICAL_TEXT


def test_the_parsed_graph_has_every_part() -> None:
    graph = parse_graph(CANONICAL_TEXT)
    assert graph.values["x"] == Value("x", "float32", (2, "s0"), "input")
    assert graph.values["twin"].alias == "w"
    seed, linear, parts = graph.ops
    assert (seed.operands, seed.results) == ((), ())
    assert (linear.native, linear.contracted) == ("aten.linear.default", 3)
    assert (parts.results, parts.mutates) == (("p", "q"), (0,))
    assert graph.outputs == ("p", "q")


def test_every_fact_of_an_op_survives() -> None:
    op = Op(
        name="a",
        canonical="add",
        native='odd "name" = with [marks]',
        operands=("x", "x"),
        results=("y",),
        path="layers.0",
        source="file.py:1",
        region="body",
        fence="a reason | with a bar",
        mutates=(1,),
        operand_rule="promote",
        literals=(0.5, float("inf")),
        dtype_argument="float32",
        chosen="pinned",
        has_dtype_argument=True,
        contracted=0,
        masks=(0, 1),
        accumulates=True,
        reads=("float64", "float64"),
        asked="full",
        calls=("softmax#1",),
        trips=12,
        turns=("x",),
        decides=True,
    )
    untouched = [f.name for f in fields(Op) if getattr(op, f.name) == f.default]
    assert not untouched
    values = {"x": Value("x", "float32", (), "input"), "y": Value("y", "float32", ())}
    graph = ProgramGraph(values, (op,), ("y",))
    assert parse_graph(print_graph(graph)) == graph


def test_the_outline_has_no_facts_and_parses() -> None:
    graph = parse_graph('%x: f32[2] input\na = add(%x) -> %y: f32[2]\n  | path="b"\n')
    short = text.outline(graph)
    assert "path" not in short
    assert parse_graph(short).ops[0].operands == ("x",)


def test_a_graph_without_ops_or_outputs() -> None:
    empty = ProgramGraph({}, (), ())
    assert print_graph(empty) == "return\n"
    assert parse_graph("return\n") == empty


@pytest.mark.parametrize(
    "extent", ["s0 + 1", "Max(1, (s0//2) + 1)", "(s0//2)*s1", -1, 0]
)
def test_symbolic_extents_survive(extent: int | str) -> None:
    values = {"x": Value("x", "float32", (extent, 2), "input")}
    graph = ProgramGraph(values, (), ("x",))
    assert parse_graph(print_graph(graph)) == graph


def test_an_op_may_be_called_like_the_last_line() -> None:
    graph = parse_graph("returned = relu() -> %y: f32[2]\nreturn %y")
    assert [op.name for op in graph.ops] == ["returned"]
    assert graph.outputs == ("y",)


def test_an_op_without_an_arrow_has_no_results() -> None:
    assert (
        parse_graph("%x: f32[] input\ncheck = assert(%x)\nreturn").ops[0].results == ()
    )


def test_unknown_dtypes_are_kept() -> None:
    assert parse_graph("%k: key[2] input\nreturn").values["k"].dtype == "key"


def test_values_are_shown_as_errors_show_them() -> None:
    assert text.value_text(Value("x", "bfloat16", (2, "s0"))) == "%x: bf16[2,s0]"
    assert text.tensor_text("float8_e4m3fn", ()) == "f8e4m3fn[]"


MISTAKES = {
    "%x f32[2] input": "line 2: '%x f32[2] input' is no value; want '%name: f32[2,3]'",
    "%x: f32[2] waight": "line 2: unknown kind 'waight'; want input, parameter",
    "what is this": "line 2: 'what is this' is no value, op, facts or return",
    "a = relu(%x) -> y": "line 2: 'y' is no value",
    'a = relu(%x) ->\n  | patch="head"': "line 3: unknown fact 'patch'; want one of",
    "a = relu(%x) ->\n  | path=head": "line 3: fact 'path' has no value in JSON",
    '  | path="head"': "line 2: facts before the first op",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_named_with_its_line(line: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph(f"%z: f32[] input\n{line}\nreturn\n")
    assert MISTAKES[line] in str(caught.value)


def test_equal_graphs_have_equal_texts() -> None:
    one = parse_graph(CANONICAL_TEXT)
    two = replace(one, values=dict(one.values))
    assert print_graph(one) == print_graph(two)


STATES = """\
%mean: f32[2] buffer
%count: i32[] buffer
add = add(%mean) -> %new: f64[2]
return %new into %mean, %mean, %count into %count
"""


def test_states_come_back_as_they_were() -> None:
    graph = parse_graph(STATES)
    assert graph.outputs == ("new", "mean", "count")
    assert graph.states == ((0, "mean"), (2, "count"))
    assert print_graph(graph) == STATES


def test_numbers_of_constants_come_back() -> None:
    text = (
        "%a: f32[] constant = 1e-08\n%b: f32[2] buffer = -1000000000.0, 0.999\nreturn\n"
    )
    graph = parse_graph(text)
    assert [v.numbers for v in graph.inputs()] == [(1e-8,), (-1e9, 0.999)]
    assert print_graph(graph) == text
