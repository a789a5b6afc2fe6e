"""The HTML file of a plan."""

import json
from dataclasses import replace

import pytest

from amprewrite.errors import PlanMismatchError
from amprewrite.page.model import Histogram
from tests.plan_text import SMALL, plan_of


def test_a_plan_writes_its_page(tmp_path) -> None:
    plan = plan_of(SMALL)
    path = tmp_path / "plan.html"
    histogram = Histogram("w", "weight", "body", {-3: 5})
    plan.to_html(path, title="My model", exponents=[histogram])
    text = path.read_text("utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["title"] == "My model"
    assert data["histograms"]["rows"][0]["counts"] == {"-3": 5}
    assert data["short"]["bfloat16"] == "bf16"


def test_a_program_that_was_edited_is_refused(tmp_path) -> None:
    broken = replace(plan_of(SMALL), program=("nonsense",))
    with pytest.raises(PlanMismatchError, match="line 1 of the plan's program"):
        broken.to_html(tmp_path / "plan.html")
