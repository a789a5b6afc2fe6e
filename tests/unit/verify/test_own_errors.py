from dataclasses import replace
from math import inf

import numpy as np

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.measure.runs import OpSample
from amprewrite.plan import Decision
from amprewrite.verify.own_errors import OwnErrors, op_error
from amprewrite.verify.rows import worst

DECISION = Decision(
    "add", "add", "aten.add", "promote", "bfloat16", "", "", path="layer.0"
)


def sample(actual, alone, reference=(1.0, 1.0), *, exact=False):
    arrays = [(np.array(values),) for values in (reference, actual, alone)]
    return OpSample("add", *arrays, exact=exact)


def test_own_and_accumulated_errors_are_apart():
    found = op_error(sample((1.5, 1.5), (1.0, 1.25)), DECISION)
    assert found.accumulated == 0.5
    assert 0.17 < found.own < 0.18
    assert found.nonfinite == 0


def test_an_op_that_rounds_nothing_has_no_error_of_its_own():
    found = op_error(sample((1.5, 1.5), (1.0, 1.25), exact=True), DECISION)
    assert (found.own, found.accumulated) == (0, 0.5)


def test_the_worst_result_counts():
    good, bad = (np.array([1.0]), np.array([1.0])), (np.array([1.0]), np.array([2.0]))
    found = op_error(OpSample("add", good, bad, bad, exact=False), DECISION)
    assert found.own == found.accumulated == 1


def blamed(*samples):
    """The errors of ops called 0, 1, ..."""
    errors = OwnErrors({str(number): DECISION for number in range(len(samples))})
    for number, each in enumerate(samples):
        errors(replace(each, op=str(number)))
    return tuple(
        replace(error, op=name)
        for name, error in zip(errors.found, errors.errors({}), strict=True)
    )


def test_overflow_is_counted_and_comes_first():
    first = worst(blamed(sample((1, 2), (1, 2)), sample((inf, 1), (np.nan, 1))), 1)[0]
    assert (first.op, first.nonfinite, first.own) == ("1", 1, inf)


def test_a_second_walk_replaces_the_first():
    errors = OwnErrors({"add": DECISION})
    errors(sample((1, 2), (1, 2)))
    errors(sample((1, 1), (1, 1)))
    assert [error.own for error in errors.errors({})] == [0]


def test_a_fault_says_what_it_differs_from():
    wrong = replace(sample((1, 2), (1, 2)), same=(np.ones(2),))
    wrong = replace(wrong, again=lambda _unit, _draw: (np.ones(2),))
    found = op_error(wrong, DECISION)
    assert found.is_fault
    assert found.fault.startswith(
        "op add (aten.add, bfloat16) at layer.0: differs from"
    )
    cast = op_error(replace(wrong, decision=DECISION), DECISION)
    assert cast.inserted
    assert cast.fault.startswith("inserted op add")
    assert "the value handed on by 0.71" in cast.fault


def test_the_jump_is_what_an_op_adds_to_the_error_that_arrives():
    values = {n: Value(n, "float32", (2,)) for n in ("x", "a", "b", "c", "d")}
    chain = [("a", "x"), ("b", "a"), ("c", "b"), ("d", "c")]
    ops = tuple(Op(made, "add", "aten.add", (read,), (made,)) for made, read in chain)
    errors = OwnErrors({op.name: replace(DECISION, op=op.name) for op in ops})
    for name, value in (("a", 1.25), ("c", 1.5), ("d", inf)):  # b is not compared
        errors(replace(sample((value,), (1.0,), (1.0,)), op=name))
    found = errors.errors({}, ProgramGraph(values, ops, ("d",)))
    assert [(op.arrived, op.jump) for op in found] == [
        (0.0, 0.25),
        (0.25, 0.25),
        (0.5, inf),
    ]
    assert replace(found[-1], arrived=inf).jump == 0.0
