"""Module paths in a table: broken over lines at their dots."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

INDENT = "  "
"""Beginning of the lines after the first."""


@dataclass(frozen=True)
class DottedName:
    """Module path that fits into any column at least as wide as its longest part.

    Attributes:
        name: The path, such as ``encoder.layer.*.attention``.
        suffix: Text after it, such as the number of modules; on its last line.
    """

    name: str
    suffix: str = ""

    def lines(self, width: int) -> list[str]:
        """Return the path as lines of at most ``width`` characters.

        A part that is longer than that is a line of its own.
        """
        *parts, last = self.name.split(".")
        lines = [""]
        for part in (*(f"{part}." for part in parts), last + self.suffix):
            if lines[-1].strip() and len(lines[-1] + part) > width:
                lines.append(INDENT)
            lines[-1] += part
        return lines

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        full = self.name + self.suffix
        least = max(len(line) for line in self.lines(len(INDENT)))
        return Measurement(least, len(full)).with_maximum(options.max_width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        for line in self.lines(options.max_width):
            yield Text(line, overflow="fold")
