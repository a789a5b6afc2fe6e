"""A bar is shown on a terminal, for long work."""

import io
import sys
import time

import pytest
from rich.console import Console

from amprewrite.cli import progress
from amprewrite.cli.progress import Silent


def terminal(*, is_one=True):
    return Console(file=io.StringIO(), force_terminal=is_one, width=80)


def written(console):
    return console.file.getvalue()


def work_until_shown(console, seconds=10.0):
    end = time.monotonic() + seconds
    with progress.progress(2, console) as work:
        work.step("load the model")
        work.step("convert")
        while "convert" not in written(console) and time.monotonic() < end:
            time.sleep(0.01)


def test_long_work_has_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.01)
    console = terminal()
    work_until_shown(console)
    assert "2/2 convert" in written(console)
    assert "0:00:0" in written(console)


def test_the_bar_is_removed_when_work_fails(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.01)
    console = terminal()

    def fail():
        with progress.progress(1, console) as work:
            work.step("fail")
            while "fail" not in written(console):
                time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ended = written(console)
    assert ended.endswith("\x1b[2K")  # the line of the bar is erased
    time.sleep(0.3)  # it is refreshed ten times a second
    assert written(console) == ended


def test_short_work_has_none(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.05)
    console = terminal()
    with progress.progress(1, console) as work:
        work.step("convert")
    time.sleep(0.1)
    assert written(console) == ""


def test_nothing_is_written_where_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    console = terminal(is_one=False)
    work_until_shown(console, seconds=0.1)
    assert written(console) == ""


def test_stderr_of_a_test_is_no_terminal():
    with progress.progress(1) as work:
        work.step("convert")
    assert isinstance(work, Silent)


def test_results_on_stdout_stay_there(monkeypatch, capsys):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    console = terminal()
    with progress.progress(1, console) as work:
        work.step("convert")
        while not written(console):
            time.sleep(0.01)
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in written(console)
