"""Printing: results go to stdout, messages to stderr."""

import json
import os
import sys
from collections.abc import Callable

from rich.console import Console, RenderableType

PIPE_WIDTH = 120
"""Width of a table, in columns, when stdout is no terminal."""


def say(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def show(*parts: RenderableType) -> None:
    """Print text as it is, and tables as wide as the terminal, to stdout."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(
        width=None if wide else PIPE_WIDTH, markup=False, highlight=False, emoji=False
    )
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            console.print(part)


def answer(data: Callable[[], object], *parts: RenderableType, as_json: bool) -> None:
    """Print the result of a command to stdout: as JSON, or as text and tables.

    Args:
        data: Returns the data for JSON.
        *parts: Text and tables.
        as_json: Whether JSON is asked for.
    """
    if as_json:
        show_json(data())
    else:
        show(*parts)


def show_json(data: object) -> None:
    """Print ``data`` to stdout as JSON."""
    print(json.dumps(data, indent=1))
