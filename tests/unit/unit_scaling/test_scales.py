"""Scales of an array, and names of tensors."""

import numpy as np
import pytest

from amprewrite.unit_scaling.tracking import Scale, base_name


def test_scales_of_an_array():
    found = Scale.of(np.array([[0.0, 4.0], [0.0, -2.0]], np.float16))
    assert (found.rms, found.largest, found.zeros) == (5**0.5, 4.0, 0.5)
    assert found.std == pytest.approx(4.75**0.5)


def test_scales_do_not_overflow_a_low_dtype():
    assert Scale.of(np.full(3, 6e4, np.float16)).rms == pytest.approx(6e4, rel=1e-3)


def test_masked_logits_have_the_scale_of_the_others():
    found = Scale.of(np.array([-np.inf, 3.0, -3.0]))
    assert (found.std, found.rms, found.largest) == (3.0, 3.0, np.inf)
    assert np.isnan(Scale.of(np.full(2, np.nan)).rms)


def test_an_empty_array_has_none():
    assert Scale.of(np.ones((0, 3))) == Scale(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "base"),
    [("linear_12", "linear"), ("layer_norm", "layer_norm"), ("_3", "_3"), ("", "")],
)
def test_a_base_name_has_no_number(name, base):
    assert base_name(name) == base
