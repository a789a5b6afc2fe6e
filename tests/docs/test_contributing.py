"""Every recipe of CONTRIBUTING.md works, and what it leaves passes the rules."""

import re
import subprocess
import tomllib

import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.links import ROOT
from tests.docs.recipes import changed, copied, follow, path_of, run

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
)
RECIPES = [name for name in SECTIONS if name.startswith("Add ")]
SETUP = 'pip install -c constraints.txt -e ".[dev]" && poe check'


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout."""
    return copied(ROOT, tmp_path / "checkout")


def written():
    """Files of Python that the recipes write or change."""
    blocks = [b for name in RECIPES for b in blocks_of(SECTIONS[name])]
    paths = [path_of(b)[0] for b in blocks if b.language in ("python", "diff")]
    return sorted({path for path in paths if path.endswith(".py")})


def test_there_is_a_recipe_for_each_thing_that_is_added():
    things = [name.split()[-1] for name in RECIPES]
    assert things == ["op", "policy", "pass", "placement", "primitive"]


def test_the_way_to_set_up_is_that_of_the_readme():
    assert [b.text.strip() for b in blocks_of(SECTIONS["Set up"])] == [SETUP]
    assert SETUP in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_of_poe_is_named():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tasks = tomllib.loads(text)["tool"]["poe"]["tasks"]
    assert set(re.findall(r"^\| `poe (\w+)` \|", TEXT, re.MULTILINE)) == set(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works(name, checkout):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    blocks = blocks_of(SECTIONS[name])
    assert blocks[-1].language == "shell"  # it ends with its tests
    for block in blocks:
        follow(block, checkout)


@pytest.mark.slow
def test_what_the_recipes_leave_passes_the_rules(checkout):
    for block in (b for name in RECIPES for b in blocks_of(SECTIONS[name])):
        if block.language != "shell":
            follow(block, checkout)
    for command in (
        ["ruff", "format", "--check", "--diff", *written()],
        ["ruff", "check", *written()],
        ["lint-imports", "--no-logo"],
    ):
        done = subprocess.run(
            command, capture_output=True, check=False, cwd=checkout, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    run("python -m pytest -q tests/test_house_rules.py", checkout)


def test_a_recipe_that_does_not_fit_is_refused(tmp_path):
    assert changed("a\nb\nc\n", " a\n-b\n+d\n") == "a\nd\nc\n"
    with pytest.raises(AssertionError, match="want these lines once"):
        changed("a\nb\n", " a\n-c\n")
    with pytest.raises(AssertionError, match="path/of/the/file"):
        follow(Block("python", "x = 1\n", 7), tmp_path)
    with pytest.raises(AssertionError, match="python -c"):
        follow(Block("shell", "python -c 'raise SystemExit(3)'\n", 1), tmp_path)
    (tmp_path / "a.py").touch()
    with pytest.raises(AssertionError, match=r"a\.py is there already"):
        follow(Block("python", "# a.py\nx = 1\n", 1), tmp_path)
