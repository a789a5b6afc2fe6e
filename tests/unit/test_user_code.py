"""Lines of the user, told from those of libraries by where the libraries are."""

import json
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from amprewrite import user_code

STANDARD = sysconfig.get_path("stdlib")


@pytest.mark.parametrize(
    "file",
    [
        "model.py",
        "<stdin>",
        "/x/amprewrite/torch/jax/contextlib.py",
        f"{STANDARD}/site-packages/mine/model.py",  # where pip installs outside a venv
        f"{Path(click.__file__).parent}_of_mine/model.py",
        "/x/site-packages/jax/model.py",  # not where jax is
    ],
)
def test_a_file_outside_the_libraries_is_the_users(file: str) -> None:
    assert user_code.is_users(file)


@pytest.mark.parametrize(
    "file",
    [
        click.__file__,
        user_code.__file__,
        f"{STANDARD}/contextlib.py",
        f"{STANDARD}/json/decoder.py",
        "<frozen runpy>",
    ],
)
def test_a_file_of_a_library_is_not_the_users(file: str) -> None:
    assert not user_code.is_users(file)


def test_a_file_belongs_to_a_package_where_it_was_loaded_from() -> None:
    assert user_code.is_in(click.__file__, "typer", "click")
    assert not user_code.is_in(click.__file__, "typer", "not_loaded")


@dataclass
class Checked:
    """A class whose ``__init__`` is generated."""

    value: int

    def __post_init__(self) -> None:
        """Refuse the value."""
        raise ValueError(self.value)


def test_an_error_has_the_innermost_line_of_the_user() -> None:
    with pytest.raises(ValueError, match="3") as caught:
        Checked(3)
    line = Checked.__post_init__.__code__.co_firstlineno + 2
    assert user_code.raised_at(caught.value) == (__file__, line)
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("")
    mine = caught.traceback[0].lineno + 1
    assert user_code.raised_at(caught.value) == (__file__, mine)


def test_an_error_outside_of_the_users_code_has_no_line() -> None:
    assert user_code.raised_at(ValueError("made, not raised")) is None


def test_code_without_a_file_was_typed_or_generated() -> None:
    """A dataclass has its ``__init__`` made in a file ``<string>``."""
    code = compile("frame()", "<string>", "eval")
    found = {"frame": sys._getframe}  # a shell's, whose module has no file
    assert user_code.runs_users(eval(code, found))
    assert not user_code.runs_users(eval(code, found | {"__file__": __file__}))
