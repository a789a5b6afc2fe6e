"""A progress bar on stderr, for work that takes longer than two seconds."""

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

DELAY = 2.0
"""Seconds of work before the bar is shown."""


class Work:
    """Steps of a command, with a bar once they have taken :data:`DELAY` seconds.

    The bar pulses: the time that a step will take is unknown. Beside it are the number
    and name of the step, and the seconds so far.
    """

    def __init__(self, steps: int, console: Console) -> None:
        """Start the clock of ``steps`` steps."""
        self._steps, self._step = steps, 0
        self._shown = self._closed = False
        self._lock = threading.Lock()
        columns = TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn()
        self._bar = Progress(
            *columns, console=console, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("", total=None)
        self._timer = threading.Timer(DELAY, self._show)
        self._timer.daemon = True
        self._timer.start()

    def step(self, name: str) -> None:
        """Begin the next step."""
        self._step += 1
        self._bar.update(self._task, description=f"{self._step}/{self._steps} {name}")

    def _show(self) -> None:
        with self._lock:
            if not self._closed:
                self._shown = True
                self._bar.start()

    def close(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._shown:
                self._bar.stop()


class Silent:
    """Steps of a command without a terminal: nothing is shown."""

    def step(self, name: str) -> None:
        """Begin the next step."""


@contextmanager
def progress(steps: int, console: Console | None = None) -> Generator[Work | Silent]:
    """Show a progress bar for the body, if it takes long and stderr is a terminal.

    Args:
        steps: How many times the body calls ``step``.
        console: Where the bar goes; None for stderr.
    """
    console = console or Console(file=sys.stderr)
    if not console.is_terminal:
        yield Silent()
        return
    work = Work(steps, console)
    try:
        yield work
    finally:
        work.close()
