"""What lockstep runs and sensitivities of both frameworks have in common."""

from math import inf

import numpy as np

from amprewrite.execute.lockstep import inserted, inserted_sample
from amprewrite.execute.sensitivity import (
    no_floats,
    no_gradient,
    not_finite,
    sensitivity_of,
)
from amprewrite.ir import Op
from amprewrite.measure.runs import values_of
from amprewrite.plan.sensitivity import EightBits, Key, Probes

OP = Op("exp", "exp", "aten.exp.default", ("x",), ("y",), source="model.py:3")


def test_an_inserted_cast_is_a_row_that_is_compared_with_its_source() -> None:
    decision = inserted("x for exp", "convert", ("float32", "float16"))
    x, low = np.array([1.0, 2.0, 1e9]), np.array([1.0, 2.5, inf])
    sample = inserted_sample(decision, x, low, 65504, ["exp"])
    assert (decision.operands, decision.results) == (("float32",), ("float16",))
    assert list(values_of(sample.actual[0]).block(0, 3)) == [1.0, 2.5, 0.0]
    assert sample.whole[0] is x
    assert sample.readers == ("exp",)
    assert inserted_sample(decision, x, x, None).exact


def test_a_sensitivity_is_the_mean_square_of_each_row() -> None:
    eight = EightBits("dot", "float8_e4m3fn", "none")
    rows: dict[Key, list[float]] = {
        "a": [3.0, 4.0],
        ("a", "exp"): [1.0, 1.0],
        "b": [1.0, inf],
        eight: [2.0, 0.0],
    }
    probes = Probes("float16", "float32", frozenset(("a", "b")), frozenset())
    found = sensitivity_of(rows, probes, {("a", "exp")}, {"a": 1e6})
    assert dict(found.stored) == {"a": 12.5, "b": inf}
    assert dict(found.read) == {("a", "exp"): inf}
    assert dict(found.eight) == {eight: 2.0}
    assert (found.directions, dict(found.peaks)) == (2, {"a": 1e6})


REFUSALS = [
    no_gradient(OP, ValueError("no rule\nof exp"), "give one"),
    no_gradient(None, None, "give one"),
    no_floats("model"),
    not_finite("y", "NaN", OP, "model"),
]

TEXTS = """
tolerance needs gradients, and aten.exp.default (%exp) at model.py:3 cannot be \
differentiated: no rule; give one, or leave tolerance=None
tolerance needs gradients, and an op of the model cannot be differentiated: it has no \
gradient; give one, or leave tolerance=None
tolerance bounds the error of float outputs; this model gives none
output y has NaN in full precision already; the first are made by aten.exp.default \
(%exp) at model.py:3; give arguments for which the model is finite
"""


def test_refusals_name_the_op_and_the_cure() -> None:
    assert [str(error) for error in REFUSALS] == TEXTS.strip().split("\n")
