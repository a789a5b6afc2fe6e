"""The plot of deviations."""

import sys

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.unit_scaling.tracking import (
    SMALLEST,
    Scale,
    ScaleRow,
    Tracked,
    plot_rows,
)

CONSTANT, ONE = Scale(0.0, 1.0, 1.0, 0.0), Scale(1.0, 1.0, 2.0, 0.0)
ROWS = [
    ScaleRow.of(Tracked("norm.weight", "", (4,), CONSTANT, ONE, parameter=True)),
    ScaleRow.of(Tracked("linear", "", (4,), ONE, None)),
]


def test_constants_and_missing_gradients_have_no_point():
    pytest.importorskip("matplotlib")
    values, gradients = plot_rows(("scales",), ROWS).get_axes()
    assert [tuple(point) for point in values.get_lines()[0].get_xydata()] == [(1, 1)]
    assert [tuple(point) for point in gradients.get_lines()[0].get_xydata()] == [(1, 0)]
    labels = [label.get_text() for label in values.get_yticklabels()]
    assert labels == ["norm.weight", "linear"]


def test_the_least_numbers_of_formats_are_those_of_the_formats():
    types = pytest.importorskip("ml_dtypes")
    names = {"float8 e4m3": types.float8_e4m3fn, "float8 e5m2": types.float8_e5m2}
    for name, dtype in names.items():
        assert SMALLEST[name] == float(types.finfo(dtype).smallest_subnormal)


def test_matplotlib_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="not installed"):
        plot_rows(("scales",), ROWS)
