"""The public function of unit scaling: what it refuses before a framework is loaded."""

import pytest

import amprewrite
from amprewrite import scaling
from amprewrite.errors import UnitScalingError, UnsupportedError


def test_it_is_public():
    assert amprewrite.unit_scale is scaling.unit_scale


def test_a_wrong_constraint_is_refused_first():
    with pytest.raises(UnitScalingError, match="unknown constraint"):
        scaling.unit_scale(3, (), constraint="never")


def test_other_objects_are_refused():
    with pytest.raises(UnsupportedError, match="not a str"):
        scaling.unit_scale("model", ())
