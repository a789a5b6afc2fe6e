"""Run commands of the command line in a test."""

import json

from typer.testing import CliRunner

from amprewrite import cli


def run(*args):
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, [str(arg) for arg in args])


def done(*args):
    """Stdout of a command that succeeds."""
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def mistake(*args):
    """The one line of a command that the user got wrong."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("amprewrite: ")
    if "--json" in args:
        message = json.loads(result.stdout)["error"]["message"]
        assert line == f"amprewrite: {message}"
    else:
        assert result.stdout == ""
    return line
