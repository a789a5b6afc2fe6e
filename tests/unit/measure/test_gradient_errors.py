"""Errors of gradients by contractions that round to 8 bits alone."""

from math import inf

import numpy as np
import pytest

from amprewrite.errors import ToleranceError
from amprewrite.measure.runs import Run
from amprewrite.measure.tolerance import (
    measure_gradients,
    relative_change,
    without_eight_bits,
)
from amprewrite.passes import Setting, make_plan
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

GRAPH = graph_of("""
    %x: f32[8,16] input
    %w: f32[16,16] parameter
    one = linear(%x, %w) -> %h: f32[8,16]
      | contracted=16
    two = linear(%h, %w) -> %y: f32[8,16]
      | contracted=16
    return %y
""")


def run(**gradients: list[float]) -> Run:
    return Run({}, gradients={name: np.array(row) for name, row in gradients.items()})


def test_each_contraction_changes_the_gradients_of_16_bits() -> None:
    exact, low = run(a=[3.0, 0.0], b=[4.0]), run(a=[3.0, 0.1], b=[4.0])
    alone = run(a=[3.0, 0.1], b=[4.5])
    found = measure_gradients(
        exact, [("", low.gradients), ("one", alone.gradients)], 1e-4
    )
    assert found.norm == 5.0
    assert found.eight == {"one": {"a": 0.0, "b": 0.5}}
    assert found.square("one") == pytest.approx(0.01)
    assert found.low == {"a": pytest.approx(0.1), "b": 0.0}
    assert relative_change(alone, exact, found) == pytest.approx(0.26**0.5 / 5)
    assert relative_change(run(a=[3.0, 0.0], b=[inf]), exact, found) == inf


def test_gradients_that_are_not_finite_are_named() -> None:
    with pytest.raises(ToleranceError, match="the gradient of b is not finite"):
        measure_gradients(run(a=[1.0], b=[inf]), [("", {})], 0.0)


def test_a_plan_loses_all_formats_but_those_of_one_op() -> None:
    plan = make_plan(GRAPH, Matcher(load_policy("fp8")), Setting())
    assert [d.op for d in plan.quantised] == ["one", "two"]
    assert without_eight_bits(plan, "two").quantised == (plan.by_op["two"],)
    assert not without_eight_bits(plan).quantised
