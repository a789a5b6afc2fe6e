"""Plans that were timed, and their files."""

from pathlib import Path

import pytest

from amprewrite.errors import AmpWarning
from amprewrite.plan import Plan
from amprewrite.plan.fields import TimedPlan
from amprewrite.plan.hardware import load_timed, save_timed, timed_file
from tests.plan_text import plan_of

PROGRAM, CONDITIONS = ("y = add(%x)", "x: (2, 3)"), ("cpu", "eager")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = plan_of("%x: f32[2,3] input\nreturn %x")
    object.__setattr__(made, "timed", (TimedPlan("full", 1e-3, 0.0, 5),))
    return made


def test_a_plan_comes_back_as_it_was(plan: Plan) -> None:
    assert load_timed(PROGRAM, CONDITIONS) is None
    save_timed(plan, PROGRAM, CONDITIONS)
    assert load_timed(PROGRAM, CONDITIONS) == plan


def test_other_extents_and_conditions_have_other_files(plan: Plan) -> None:
    save_timed(plan, PROGRAM, CONDITIONS)
    assert load_timed((*PROGRAM[:1], "x: (2, 4)"), CONDITIONS) is None
    assert load_timed(PROGRAM, ("cuda", "eager")) is None


@pytest.mark.usefixtures("plan")
def test_a_file_that_is_no_plan_is_ignored_with_a_warning() -> None:
    file = timed_file(PROGRAM, CONDITIONS)
    file.parent.mkdir(parents=True)
    file.write_text("{}", "utf-8")
    with pytest.warns(AmpWarning, match="the plans of the program are timed again"):
        assert load_timed(PROGRAM, CONDITIONS) is None


def test_a_folder_that_cannot_be_written_is_a_warning(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "file"
    home.write_text("", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with pytest.warns(AmpWarning, match="timed again next time; set XDG_CACHE_HOME"):
        save_timed(plan, PROGRAM, CONDITIONS)
