"""Every block of the README runs and prints what the README shows."""

import importlib
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amprewrite import cli
from tests.docs.blocks import blocks_of, matches

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(TEXT)
MAX_LINES = 130

INSTALLS = (
    'pip install -c constraints.txt ".[demo]" && amprewrite demo',
    'pip install -c constraints.txt -e ".[dev]" && poe check',
)
"""The shell lines that a test of the README cannot run: they install."""


BACKEND = "importlib.import_module('amprewrite.backend').amprewrite"
"""What the name of the backend stands for."""


def of(language):
    return [block for block in BLOCKS if block.language == language]


def line_of(block):
    return f"line {block.line}"


def is_installed():
    """Whether torch finds the backend: entry points need an installed package."""
    return bool(entry_points(group="torch_dynamo_backends", name="amprewrite"))


def without_lines(text):
    """The text without the lines of torch's own files, if it is another release."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    release = importlib.import_module("torch").__version__.partition("+")[0]
    if f"torch=={release}\n" in constraints:
        return text
    return re.sub(r"(\w+\.py):\d+", r"\1", text)


def test_the_readme_is_short():
    assert len(TEXT.splitlines()) <= MAX_LINES


def test_every_language_is_checked():
    assert {block.language for block in BLOCKS} <= {"python", "shell", "text", "toml"}


@pytest.mark.slow
def test_python_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch").manual_seed(0)  # loaded here, it is not seeded yet
    monkeypatch.chdir(tmp_path)
    for block in of("toml"):
        name = block.text.splitlines()[0].removeprefix("# ")
        Path(name).write_text(block.text, encoding="utf-8")
    names: dict[str, object] = {"importlib": importlib}
    for block in of("python"):
        text = block.text
        if not is_installed():
            text = text.replace('backend="amprewrite"', f"backend={BACKEND}")
        exec(compile(text, f"README.md:{block.line}", "exec"), names)
        printed = capsys.readouterr().out
        if block.output is not None:
            shown, told = map(without_lines, (block.output, printed))
            assert matches(shown, told), f"{line_of(block)}:\n{printed}"


def test_the_files_in_it_are_good_policies(tmp_path):
    for block in of("toml"):
        path = tmp_path / "policy.toml"
        path.write_text(block.text, encoding="utf-8")
        result = CliRunner().invoke(cli.app, ["policy", "check", str(path)])
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("block", of("shell"), ids=line_of)
def test_shell_blocks_run(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in block.text.splitlines():
        if line in INSTALLS:
            continue
        program, *args = shlex.split(line)
        assert program == "amprewrite"
        pytest.importorskip("torch")
        result = CliRunner().invoke(cli.app, args)
        assert result.exit_code == 0, result.stderr
        assert block.output is not None
        assert matches(block.output, result.stdout), result.stdout


def test_the_commands_that_install_are_there():
    lines = [line for block in of("shell") for line in block.text.splitlines()]
    assert set(INSTALLS) <= set(lines)
    assert f"<!-- test-command -->\n```shell\n{INSTALLS[1]}\n```" in TEXT


def test_the_commands_it_names_exist():
    output = CliRunner().invoke(cli.app, ["--help"]).output
    for command in ("convert", "demo", "inspect", "policy", "verify"):
        assert f"  {command} " in output
        help_text = CliRunner().invoke(cli.app, [command, "--help"])
        assert help_text.exit_code == 0


def test_blocks_are_found_with_their_output():
    text = "a\n```python\nx\n```\n```text\ny\n```\nz\n```text\nw\n```\n"
    first, second, third = blocks_of(text)
    assert (first.language, first.text, first.line) == ("python", "x\n", 3)
    assert first.output == "y\n"
    assert second.output is None  # words stand between
    assert third.output is None


def test_output_is_compared():
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("[x]  \n", "[x]\n")
    assert matches("error 0.25 of 1", "error 3.1e-05 of 1")
    assert not matches("error 0.25 of 1", "error 0.25 of 2")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a\n...\nd\n", "a\nb\n")
