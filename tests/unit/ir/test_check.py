"""Each invariant of a program graph, broken once."""

from dataclasses import replace

import pytest

from amprewrite.errors import GraphError
from amprewrite.ir import Op, ProgramGraph, Value, check_graph, parse_graph
from amprewrite.ir.graph import INVARIANTS

GOOD = parse_graph("""
%x: f32[2] input
a = relu(%x) -> %a: f32[2]
b = add(%a, %x) -> %b: f32[2]
return %b
""")


def with_ops(*ops: Op) -> ProgramGraph:
    return replace(GOOD, ops=ops)


def with_values(*values: Value) -> ProgramGraph:
    return replace(GOOD, values={**GOOD.values, **{v.name: v for v in values}})


A, B = GOOD.ops
X = GOOD.values["x"]

BROKEN = {
    "a state is no output": (
        replace(GOOD, states=((1, "x"),)),
        "I8 a state is an output that replaces an input: there is no output 1",
    ),
    "a state replaces no input": (
        replace(GOOD, states=((0, "a"),)),
        "I8 a state is an output that replaces an input: output 0 replaces %a, which",
    ),
    "an op reads a name that has no value": (
        with_ops(A, replace(B, operands=("a", "ghost"))),
        "I1 every name is declared: b names %ghost, which has no value entry",
    ),
    "a value is entered under another name": (
        replace(GOOD, values={**GOOD.values, "y": X}),
        "I1 every name is declared: %x is entered under the name %y",
    ),
    "two ops make one value": (
        with_ops(A, replace(B, results=("b", "a"))),
        "I2 values are assigned once: %a is made by a and by b",
    ),
    "an op makes an input": (
        with_ops(A, replace(B, results=("b", "x"))),
        "I2 values are assigned once: %x is of kind input and made by b",
    ),
    "a result has no op": (
        with_values(Value("orphan", "float32", (2,))),
        "I2 values are assigned once: %orphan is a result that no op makes",
    ),
    "an op reads what is made later": (
        with_ops(B, A),
        "I3 values are defined before they are read: b reads %a, which is not defined",
    ),
    "an output does not exist": (
        replace(GOOD, outputs=("ghost",)),
        "I3 values are defined before they are read: output %ghost is not defined",
    ),
    "two ops have one name": (
        with_ops(A, replace(B, name="a")),
        "I4 op names are unique: two ops are called a",
    ),
    "an op writes an operand that it does not have": (
        with_ops(A, replace(B, mutates=(2,))),
        "I5 operand indices are in range: b has no operand 2; it has 2",
    ),
    "a mask is an operand that does not exist": (
        with_ops(A, replace(B, masks=(-1,))),
        "I5 operand indices are in range: b has no operand -1; it has 2",
    ),
    "an op says of one operand how it is read": (
        with_ops(A, replace(B, reads=("float32",))),
        "I7 reads says it of every operand, or of none: b has 2 operands and reads",
    ),
    "two ops of one body run differently often": (
        with_ops(replace(A, region="loop", trips=2), replace(B, region="loop")),
        "I9 ops of one body run equally often: b runs 1 times in loop, where",
    ),
    "an op runs less than never": (
        with_ops(A, replace(B, region="loop", trips=-1)),
        "I9 ops of one body run equally often: b runs -1 times",
    ),
    "an alias names nobody": (
        with_values(replace(X, alias="ghost")),
        "I6 an alias names the owner of the storage: %x shares the storage of unknown",
    ),
    "an alias of an alias": (
        with_values(replace(GOOD.values["a"], alias="x"), replace(X, alias="b")),
        "I6 an alias names the owner of the storage: %a aliases %x, which is itself",
    ),
}


def test_a_good_graph_comes_back() -> None:
    assert check_graph(GOOD) is GOOD


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_invariant_is_named_with_its_place(case: str) -> None:
    graph, message = BROKEN[case]
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    assert f"program graph breaks {message}" in str(caught.value)


def test_every_invariant_is_broken_above() -> None:
    titles = {title for title, _ in INVARIANTS}
    assert titles == {message.partition(":")[0] for _, message in BROKEN.values()}
