"""The pass: which constraints and models it takes."""

import pytest

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.unit_scale import unit_scale


@pytest.mark.parametrize("tau", [0, -1.0, float("nan")])
def test_a_weight_of_no_size_is_refused(tau):
    with pytest.raises(UnitScalingError, match="want a weight above 0"):
        unit_scale(None, (), tau=tau)
