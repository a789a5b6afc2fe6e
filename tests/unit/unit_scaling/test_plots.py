"""The figures are drawn: four rows of two."""

import sys

import pytest

from amprewrite.errors import UnsupportedError
from amprewrite.unit_scaling import figures_of, plot_figures

FOUND = figures_of("relu", sample=2**8, mults=(0.5, 1.0))


def test_all_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = plot_figures(FOUND)
    axes = drawn.get_axes()
    assert len(axes) == 8
    assert drawn.get_suptitle() == "relu (closed form)"
    assert len(axes[6].get_lines()) == 3
    x, y = axes[4].get_lines()[0].get_data()
    assert (list(x), list(y)) == ([0.5, 1.0], list(FOUND.sweep.output))
    drawn.savefig(tmp_path / "relu.svg")


def test_matplotlib_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match="not installed"):
        plot_figures(FOUND)
