"""Small text files that anybody may have written."""

import os
from pathlib import Path

import pytest

from amprewrite.errors import PolicyError
from amprewrite.policy.load import read_text


def refusal(path: Path, largest: int = 10) -> str:
    with pytest.raises(PolicyError) as caught:
        read_text(path, largest, "a poem", PolicyError)
    return str(caught.value)


def test_a_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("höchstens")
    assert read_text(tmp_path / "a", 10, "a poem", PolicyError) == "höchstens"


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 11)
    (tmp_path / "bytes").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "large") == (
        "has more than 10 bytes; want a poem of at most that"
    )
    assert "is no text in UTF-8" in refusal(tmp_path / "bytes")
    assert refusal(tmp_path / "pipe") == (
        "cannot be read (it is a pipe or a device); want a poem"
    )
    assert "it is a folder" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "none")
    assert "null byte" in refusal(tmp_path / "a\0")
