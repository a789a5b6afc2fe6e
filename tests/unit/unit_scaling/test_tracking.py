"""Scales of tensors, and their table."""

import numpy as np
import pytest

from amprewrite.errors import ArgumentError
from amprewrite.unit_scaling import track_scales
from amprewrite.unit_scaling.tracking import Scale, Tracked, Tracks, numbered


def test_scales_of_an_array():
    found = Scale.of(np.array([[0.0, 4.0], [0.0, -2.0]], np.float16))
    assert (found.rms, found.largest, found.zeros) == (5**0.5, 4.0, 0.5)
    assert found.std == pytest.approx(4.75**0.5)


def test_scales_do_not_overflow_a_low_dtype():
    assert Scale.of(np.full(3, 6e4, np.float16)).rms == pytest.approx(6e4, rel=1e-3)


def test_an_empty_array_has_none():
    assert Scale.of(np.ones((0, 3))) == Scale(0.0, 0.0, 0.0, 0.0)


def test_a_table_has_a_row_for_each_tensor():
    one = Scale(1.0, 2.0, 3.0, 0.25)
    rows = (
        Tracked("linear", "layer.0", (2, 3), one, one),
        Tracked("x", "", (), one, None),
    )
    table = Tracks(rows)
    lines = str(table).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [
        *("linear", "1", "2", "3", "25.0%", "|", "1", "2", "3", "25.0%", "layer.0")
    ]
    assert lines[2].split() == ["x", "1", "2", "3", "25.0%", "|"]
    assert table["x"] is rows[1]


def test_names_are_numbered_from_the_second_on():
    counts = {}
    names = [numbered(name, counts) for name in ("add", "mul", "add", "add")]
    assert names == ["add", "mul", "add_1", "add_2"]


def test_what_is_no_model_is_refused():
    with pytest.raises(ArgumentError, match="cannot differentiate a str"):
        track_scales("model", ())
