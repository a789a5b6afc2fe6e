"""Tables that are written after every row, and the time that a step has left."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import facts

SHOWN = 300
"""Characters of a row that are printed."""


class Table:
    """The rows of one step, in a JSON file that is complete after each of them.

    Attributes:
        path: The file.
        rows: What was measured, by name of the row.
    """

    def __init__(self, path: Path, what: str, seconds: float) -> None:
        """Write the head of the table.

        Args:
            path: The file.
            what: What the figures are, with their units.
            seconds: How long rows may be started.
        """
        self.path, self.what = path, what
        self.rows: dict[str, Any] = {}
        self._ends = time.monotonic() + seconds
        self._facts = facts()
        self._write()

    @property
    def seconds_left(self) -> float:
        """Time that is left for rows."""
        return self._ends - time.monotonic()

    def row(self, name: str, measure: Callable[[], Any], *, needs: float = 0) -> Any:
        """Measure a row, and write the table.

        What fails costs its own row alone: the message stands there instead. A row for
        which too little time is left is skipped, and says so.

        Args:
            name: Name of the row.
            measure: Gives the row, as JSON data.
            needs: Seconds without which it is not begun.

        Returns:
            The row; None if it was skipped or failed.
        """
        if self.seconds_left < needs or self.seconds_left <= 0:
            self.rows[name] = {"skipped": f"{self.seconds_left:.0f} s were left"}
            self._write()
            return None
        start, found = time.monotonic(), None
        try:
            found = measure()
            self.rows[name] = found
        except Exception as error:  # noqa: BLE001  # any failure of a library is a result
            self.rows[name] = {"failed": f"{type(error).__name__}: {_head(error)}"}
        took = time.monotonic() - start
        print(f"{took:6.1f} s  {name}: {_short(self.rows[name])}", flush=True)
        self._write()
        return found

    def _write(self) -> None:
        found = {"what": self.what, "machine": self._facts, "rows": self.rows}
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        part.replace(self.path)  # never half a file


def _head(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _short(row: Any) -> str:
    text = json.dumps(row)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
