"""Texts go to stdout as they are, tables as wide as the reader allows."""

import json

from rich.table import Table

from amprewrite.cli.show import PIPE_WIDTH, say, show, show_json


def wide_table():
    table = Table()
    table.add_column("x" * 300)
    return table


def test_texts_are_not_read_as_markup(capsys):
    show("f32[n,4]", "[bold]")
    assert capsys.readouterr().out == "f32[n,4]\n[bold]\n"


def test_a_table_is_as_wide_as_a_pipe_or_as_asked(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    show(wide_table())
    assert max(map(len, capsys.readouterr().out.splitlines())) == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "200")
    show(wide_table())
    assert max(map(len, capsys.readouterr().out.splitlines())) == 200


def test_json_goes_to_stdout_and_what_is_said_to_stderr(capsys):
    show_json({"a": [1]})
    say("done")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": [1]}
    assert captured.err == "done\n"
