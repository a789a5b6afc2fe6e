"""The order of the runs and the treatment of failures, on models that are numbers."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.ir import ProgramGraph
from amprewrite.measure import CONVERTED, JITTED, ORIGINAL, REFERENCE
from amprewrite.measure.compare import (
    agree,
    compare,
    first_line,
    loss_scale,
    low_of,
    walk,
)
from amprewrite.measure.runs import Stepped, Walked
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Sensitivity
from tests.measured_numbers import GRAPH, KNOWN, LOWERED, run

MADE = run(output=1.0)
"""Outputs of the original in a walk."""

PLAN = Plan("bf16", "promote", "bfloat16", "float32", "", (), ())


class Numbers:
    """A model with results that are given; text is the message of a failure."""

    model = "function"
    shares_reference = True

    def __init__(self, reference=None, compiled=None, plan=PLAN, **baselines):
        self.wide = {"float64": 1.0, "float32": 1.5} | (reference or {})
        self.whole, self.others = compiled, baselines
        self.plan: Plan | None = plan
        self.low = None

    def reference(self, dtype):
        return self._made(self.wide[dtype]), [f"ran in {dtype}"]

    def converted(self):
        return self._made(self.wide.get("converted", 2.0))

    def compiled(self):
        return None if self.whole is None else self._made(self.whole)

    def baselines(self, low):
        self.low = low
        return {name: lambda n=n: self._made(n) for name, n in self.others.items()}

    def notes(self):
        return ["at the end"]

    def noted(self, dtype):
        return [f"the original names {dtype}"]

    def _made(self, number):
        if isinstance(number, str):
            raise ZeroDivisionError(number)
        return run(output=number)


def test_runs_are_in_the_order_of_a_report():
    source = Numbers(compiled=2.5, autocast=3.0, original=1.25)
    found = compare(source, "float64")
    assert list(found.runs) == [REFERENCE, CONVERTED, ORIGINAL, JITTED, "autocast"]
    numbers = [float(r.outputs["output"][0]) for r in found.runs.values()]
    assert numbers == [1.0, 2.0, 1.25, 2.5, 3.0]
    assert (found.reference, found.plan) == ("float64", PLAN)
    assert found.notes == ("ran in float64", "at the end")


def test_without_a_compiled_run_there_is_none():
    assert list(compare(Numbers(), "float64").runs) == [REFERENCE, CONVERTED]


def test_a_failing_reference_is_run_in_float32_and_said():
    found = compare(Numbers({"float64": "no f64\nmore"}), "float64")
    assert found.reference == "float32"
    assert found.runs[REFERENCE].outputs["output"] == [1.5]
    assert found.notes == (
        (
            "the reference is float32: the function does not run in float64 "
            "(ZeroDivisionError: no f64)"
        ),
        "ran in float32",
        "at the end",
    )


@pytest.mark.parametrize("wanted", ["float64", "float32"])
def test_a_reference_that_fails_in_float32_raises(wanted):
    failing = Numbers({"float64": "one", "float32": "two"})
    with pytest.raises(ZeroDivisionError, match="two"):
        compare(failing, wanted)


def test_a_reference_in_float32_is_run_once():
    found = compare(Numbers(), "float32")
    assert (found.reference, found.notes[0]) == ("float32", "ran in float32")


@pytest.mark.parametrize(
    "failing", [Numbers({"converted": "gone"}), Numbers(compiled="gone")]
)
def test_what_must_run_raises(failing):
    with pytest.raises(ZeroDivisionError, match="gone"):
        compare(failing, "float64")


def test_a_baseline_that_fails_is_recorded():
    found = compare(Numbers(original="one\ntwo", autocast=3.0), "float64")
    assert found.failures == {ORIGINAL: "ZeroDivisionError: one"}
    assert "autocast" in found.runs


def stepping(*made, reference="float64"):
    """Steps that give these outputs, one after the other, and note their dtypes."""
    left, dtypes = list(made), []

    def steps(plan, dtype):
        assert plan is PLAN
        dtypes.append(dtype)
        given = left.pop(0)
        return Walked(reference, run=given, noted=("kept",)), dtypes

    return (lambda plan, dtype: steps(plan, dtype)[0]), dtypes


NEAR = 1 + 2.0**-20
"""An output that is off by the noise of float32."""


def test_a_walk_that_the_original_agrees_with_is_the_reference():
    source = Numbers({"float64": "is not run"}, original=NEAR)
    steps, dtypes = stepping(run(output=1.0))
    found = compare(source, "float64", steps)
    assert found.runs[REFERENCE].outputs["output"] == [1.0]
    assert found.reference == "float64"
    assert found.walked is not None
    assert found.notes == ("kept", "the original names float64", "at the end")
    assert dtypes == ["float64"]


@pytest.mark.parametrize(
    ("made", "original"),
    [
        (run(output=1.0), 1.001),  # another program was captured
        (run(output=1.0), float("nan")),
        (run(output=float("inf")), float("inf")),
        (run(other=1.0), NEAR),
        (run(output=[1.0, 1.0]), NEAR),
        (None, NEAR),
        (run(output=1.0), "fails"),
    ],
)
def test_a_walk_that_differs_from_the_original_is_not(made, original):
    source = Numbers({"float64": 3.0}, original=original)
    steps, dtypes = stepping(made)
    found = compare(source, "float64", steps)
    assert found.runs[REFERENCE].outputs["output"] == [3.0]
    assert found.notes == ("ran in float64", "at the end")
    assert dtypes == ["float64"]


def test_integers_that_differ_are_no_reference():
    one, two = (replace(MADE, others={"n": np.array([n])}) for n in (1, 2))
    assert agree(one, one)
    assert not agree(one, two)


def test_where_the_original_draws_numbers_the_reference_is_run():
    source = Numbers(original=1.0)
    source.shares_reference = False
    steps, dtypes = stepping(run(output=1.0))
    found = compare(source, "float64", steps)
    assert found.notes[0] == "ran in float64"
    assert dtypes == ["float64"]


def test_a_walk_is_in_the_dtype_of_the_reference():
    source = Numbers({"float64": "no f64"}, original=2.0)
    steps, dtypes = stepping(run(output=1.0), run(output=1.5))
    found = compare(source, "float64", steps)
    assert found.reference == "float32"
    assert dtypes == ["float64", "float32"]


@pytest.mark.parametrize(
    ("plan", "low", "scale"),
    [
        (None, "bfloat16", 1.0),
        (PLAN, "bfloat16", 1.0),
        (replace(PLAN, low="float16"), "float16", 65536.0),
        (replace(PLAN, low=""), "", 1.0),
    ],
)
def test_the_low_dtype_is_that_of_the_plan(plan, low, scale):
    source = Numbers(plan=plan)
    assert compare(source, "float64").low == low
    assert (source.low, low_of(plan), loss_scale(plan)) == (low, low, scale)


def test_the_first_line_of_an_exception_has_its_class():
    assert first_line(ValueError("  one\ntwo")) == "ValueError: one"


PLANNED = replace(PLAN, decisions=(LOWERED,))


class Sides:
    """Two forms that run in some dtypes and keep account of the calls."""

    refusals = (ZeroDivisionError,)

    def __init__(
        self,
        *dtypes: str,
        graph: ProgramGraph | str = GRAPH,
        plan: Plan = PLANNED,
        sensitivity: Sensitivity | Exception = KNOWN,
    ) -> None:
        self.dtypes, self.graph, self.plan, self.known = (
            dtypes,
            graph,
            plan,
            sensitivity,
        )
        self.calls: list[object] = []
        self.inside = False

    @contextmanager
    def isolated(self):
        self.inside = True
        yield
        self.inside = False

    def read(self):
        assert self.inside
        self.calls.append("read")
        return self.graph

    def sensitivity(self, probes):
        assert self.inside
        self.calls.append(sorted(probes.stored))
        if isinstance(self.known, Exception):
            raise self.known
        return self.known

    def steps(self, dtype, observe):
        assert self.inside
        self.calls.append(dtype)
        if dtype not in self.dtypes:
            msg = f"no {dtype}"
            raise ZeroDivisionError(msg)
        observe(dtype)
        return Stepped(["one op is not compared"], MADE)


def walked(source, wanted="float64"):
    seen = []
    return walk(source, wanted, seen.append), seen


def test_a_walk_measures_the_sensitivity_and_then_the_steps():
    source = Sides("float64")
    found, seen = walked(source)
    assert source.calls == ["read", ["v"], "float64"]
    assert (found.reference, found.graph, found.sensitivity) == (
        "float64",
        GRAPH,
        KNOWN,
    )
    assert (found.notes, seen) == (("one op is not compared",), ["float64"])
    assert found.run is MADE


def test_a_walk_begins_again_in_float32():
    source = Sides("float32")
    found, seen = walked(source)
    assert source.calls == ["read", ["v"], "float64", "read", "float32"]
    assert (found.reference, found.sensitivity, seen) == ("float32", KNOWN, ["float32"])
    assert found.notes == (
        "no errors by op in float64: ZeroDivisionError: no float64",
        "one op is not compared",
    )


def test_a_walk_that_is_not_possible_says_so_in_both_dtypes():
    found, seen = walked(Sides())
    assert (found.reference, found.graph, found.sensitivity, seen) == (
        "",
        None,
        None,
        [],
    )
    assert [note[:27] for note in found.notes] == [
        "no errors by op in float64:",
        "no errors by op in float32:",
    ]


def test_another_program_is_not_walked():
    source = Sides("float64", graph="it is another")
    found, _ = walked(source)
    assert found.notes == ("no errors by op: it is another",)
    assert source.calls == ["read"]


def test_a_plan_that_lowers_nothing_has_no_sensitivity():
    source = Sides("float64", plan=replace(PLAN, low=""))
    assert walked(source)[0].sensitivity is None
    assert source.calls == ["read", "float64"]


@pytest.mark.parametrize(
    "error", [UnsupportedError("no gradient"), ZeroDivisionError("no gradient")]
)
def test_a_sensitivity_that_fails_is_noted(error):
    found, _ = walked(Sides("float64", sensitivity=error))
    assert (found.reference, found.sensitivity) == ("float64", None)
    assert found.notes[0] == f"no predicted error: {type(error).__name__}: no gradient"
