"""Learning-rate multipliers and residual weights against their formulas."""

import math

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.learning_rates import (
    fan_in,
    learning_rate_multiplier,
    residual_taus,
)

OUT = "to_output_scale"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((7,), 7), ((3, 16), 16), ((3, 8, 5), 40), ((3, 8, 5, 2), 80)],
)
def test_fan_in(shape, expected):
    assert fan_in(shape) == expected


@pytest.mark.parametrize(
    ("kind", "shape", "optimizer", "readout", "expected"),
    [
        ("weight", (8, 64), "adam", None, 1 / 8),
        ("weight", (8, 4, 9), "adam", None, 1 / 6),
        ("bias", (64,), "adam", None, 1),
        ("norm", (64,), "adam", None, 1),
        ("output", (100, 64), "adam", None, 1),
        ("weight", (8, 64), "adam", OUT, 1 / 8),
        ("weight", (8, 64), "sgd", None, 1 / 8),
        ("output", (100, 64), "sgd", None, 1),
        ("weight", (8, 64), "sgd", OUT, 8),
        ("bias", (64,), "sgd", OUT, 64),
        ("norm", (64,), "sgd", OUT, 64),
        ("output", (100, 64), "sgd", OUT, 1),
    ],
)
def test_multipliers(kind, shape, optimizer, readout, expected):
    found = learning_rate_multiplier(kind, shape, optimizer, readout_constraint=readout)
    assert math.isclose(found, expected)
    deep = learning_rate_multiplier(
        kind, shape, optimizer, depth=16, readout_constraint=readout
    )
    assert math.isclose(deep, expected / 4)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0])
def test_every_branch_adds_the_same(multiplier, ratio):
    """Contributions to the output, each a product of the weights of what follows."""
    branches = ("attention", "mlp") * 6
    taus = residual_taus(branches, multiplier=multiplier, attention_ratio=ratio)
    embedding, adds = 1.0, []
    for tau in taus:
        norm = math.sqrt(1 + tau * tau)
        embedding /= norm
        adds = [*(a / norm for a in adds), tau / norm]
    assert math.isclose(embedding**2 + sum(a * a for a in adds), 1.0)
    attention, mlp = (math.hypot(*adds[start::2]) for start in (0, 1))
    assert math.isclose(attention / mlp, ratio)
    assert max(adds[::2]) - min(adds[::2]) < 1e-12
    both = math.sqrt((attention**2 + mlp**2) / 2)
    assert math.isclose(both / embedding, multiplier)


def test_mistakes():
    with pytest.raises(UnitScalingError, match=r"shape \(\) has no fan-in"):
        fan_in(())
    with pytest.raises(UnitScalingError, match="'kernel'; want one of weight, bias"):
        learning_rate_multiplier("kernel", (3,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnitScalingError, match="want 'adam' or 'sgd'"):
        learning_rate_multiplier("bias", (3,), "lion")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnitScalingError, match="'gmean'; want None or"):
        learning_rate_multiplier("bias", (3,), "sgd", readout_constraint="gmean")
    with pytest.raises(UnitScalingError, match="depth: found 0; want"):
        learning_rate_multiplier("bias", (3,), depth=0)
    with pytest.raises(UnitScalingError, match=r"branches\[1\]: found 'ffn'; want"):
        residual_taus(("mlp", "ffn"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnitScalingError, match="want numbers above 0"):
        residual_taus(("mlp",), multiplier=0)
