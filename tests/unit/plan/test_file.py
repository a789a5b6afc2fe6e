"""The JSON file of a plan: what is refused before it is read as one."""

import json
import os
from pathlib import Path

import pytest

from amprewrite import Plan
from amprewrite.errors import PlanMismatchError
from amprewrite.plan import file
from tests.plan_text import SMALL, plan_data, plan_of


def refused_file(path: Path) -> str:
    with pytest.raises(PlanMismatchError) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(str(path).replace("\0", "\0"))
    return str(caught.value)


@pytest.mark.parametrize("text", ["not json", "", '{"format": 2,}', "9" * 5_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert "is no JSON; want a file written by Plan.save" in refused_file(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff")
    assert "is no text in UTF-8" in refused_file(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe or a device" in refused_file(tmp_path / "pipe")
    assert "it is a pipe or a device" in refused_file(Path("/dev/zero"))
    assert "it is a folder" in refused_file(tmp_path)
    assert "No such file" in refused_file(tmp_path / "none")
    assert "null byte" in refused_file(tmp_path / "nul\0")


def test_a_large_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MAX_BYTES", 1_000)
    plan_of(SMALL).save(tmp_path / "plan.json")
    assert "has more than 1,000 bytes" in refused_file(tmp_path / "plan.json")


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_a_deep_file_is_refused(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(deep)
    assert "is nested deeper than 16" in refused_file(path)


def test_a_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    text = json.dumps(plan_data()).replace('"low":', '"low": "bfloat16", "low":')
    path.write_text(text)
    assert "key 'low' occurs twice in an object" in refused_file(path)


def test_a_long_list_of_mistakes_is_cut() -> None:
    mistakes = [str(number) for number in range(1_000)]
    assert file.mistakes_head(mistakes) == "1,000 mistakes"
    assert mistakes[-2:] == ["19", "and 980 more"]


def test_a_plan_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(PlanMismatchError, match="cannot be written"):
        plan_of(SMALL).save(tmp_path)
