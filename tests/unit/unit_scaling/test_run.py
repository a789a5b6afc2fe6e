"""The function that runs a model of either framework."""

import pytest

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling.tracking import track_scales


def test_what_is_no_model_is_refused():
    with pytest.raises(ArgumentError, match="cannot differentiate a str"):
        track_scales("model", ())
