"""Do what a recipe says in a copy of the checkout: files, changes, commands."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import Block

FILES = {"python", "toml"}
"""Languages of blocks that are a file, whose path is their first line."""

LEFT_OUT = ("__pycache__", "*.egg-info", "venv", "build", "dist")
HIDDEN = (".git", ".hypothesis", ".venv", ".*_cache")
"""What a copy does without."""

PROGRAMS = {
    "amprewrite": [sys.executable, "-m", "amprewrite"],
    "python": [sys.executable],
}
"""The programs that a recipe may run."""


def copied(root: Path, to: Path) -> Path:
    """Return a copy of the checkout at ``root``."""
    ignore = shutil.ignore_patterns(*LEFT_OUT, *HIDDEN)
    return Path(shutil.copytree(root, to, ignore=ignore))


def path_of(block: Block) -> tuple[str, str]:
    """Return the path in the first line of a block, and what stands below it."""
    first, _, text = block.text.partition("\n")
    mark, _, path = first.partition(" ")
    assert mark == "#", f"line {block.line}: want '# path/of/the/file'"
    return path, text


def changed(text: str, hunk: str) -> str:
    """Return ``text`` with one hunk of a change applied, found by its lines alone."""
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    assert text.count(before) == 1, f"want these lines once:\n{before}"
    return text.replace(before, after)


def run(command: str, checkout: Path) -> str:
    """Run a line of a recipe and return what it printed.

    Raises:
        AssertionError: It failed.
    """
    program, *args = shlex.split(command)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [*PROGRAMS[program], *args],
        capture_output=True,
        check=False,
        cwd=checkout,
        env={**env, "PYTHONPATH": str(checkout)},
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(block: Block, checkout: Path) -> None:
    """Do what a block says."""
    if block.language == "shell":
        for line in block.text.splitlines():
            run(line, checkout)
        return
    name, text = path_of(block)
    file = checkout / name
    if block.language == "diff":
        found = file.read_text(encoding="utf-8")
        for hunk in text.split("@@\n"):
            found = changed(found, hunk)
        text = found
    else:
        assert block.language in FILES
        assert not file.exists(), f"{name} is there already"
    file.write_text(text, encoding="utf-8")
