"""The changelog has the form that it names, and the version that the package has."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest

import amprewrite
from tests.docs.links import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def releases(text):
    """Each release with its kinds of changes and their lines."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: dict(re.findall(r"^### (.+)\n\n((?:- .+\n?)+)", body, re.MULTILINE))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def test_releases_have_kinds_of_changes_in_order():
    found = releases(TEXT)
    assert next(iter(found)) == "Unreleased"
    for name, kinds in found.items():
        assert name == "Unreleased" or re.match(
            rf"\[{VERSION.pattern}\] - \d{{4}}-", name
        )
        assert list(kinds) == [kind for kind in KINDS if kind in kinds]
        assert kinds


def test_every_line_is_in_a_release():
    lines = [line for line in TEXT.splitlines() if line.startswith("- ")]
    counted = sum(
        text.count("\n- ") + 1
        for kinds in releases(TEXT).values()
        for text in kinds.values()
    )
    assert len(lines) == counted


def test_the_version_is_that_of_the_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{amprewrite.__version__}"' in path.read_text("utf-8")
    assert VERSION.fullmatch(amprewrite.__version__)


def test_the_version_is_that_of_the_installed_package():
    try:
        installed = version("amprewrite")
    except PackageNotFoundError:
        pytest.skip("runs from a checkout that is not installed")
    assert amprewrite.__version__ == installed


def test_releases_are_read():
    text = "## Unreleased\n\n### Added\n\n- a\n- b\n\n### Fixed\n\n- c\n"
    assert releases(text) == {"Unreleased": {"Added": "- a\n- b\n", "Fixed": "- c\n"}}
