"""Figures are files, and say what is missing to draw them."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from amprewrite.report.pareto import SUFFIXES, plot_pareto
from tests.tolerance_goal import sensitivity
from tests.unit.passes.error_budget.test_pareto import swept


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("random", [False, True])
def test_error_against_bytes_is_drawn(
    tmp_path: Path, suffix: str, *, random: bool
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"curve{suffix}"
    plot_pareto(swept(sensitivity(), random=random).points, file)
    assert file.stat().st_size > 1000


def test_every_point_is_marked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = swept(sensitivity(2.0)).points
    file = tmp_path / "curve.svg"
    plot_pareto(points, file)
    lines = [
        group
        for group in ET.parse(file).iter("{http://www.w3.org/2000/svg}g")
        if group.get("id", "").startswith("line2d")
    ]
    marks = max(
        len(list(line.iter("{http://www.w3.org/2000/svg}use"))) for line in lines
    )
    assert marks == len(points) - 1  # promote has a line of its own
