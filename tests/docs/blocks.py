"""The fenced blocks of a Markdown file, and how what they print is compared."""

import re
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ELLIPSIS = "..."
"""A line that stands for any number of lines."""

DECIMAL = re.compile(r"\d+\.\d+(e[+-]\d+)?|\d+e[+-]\d+")
"""A measured number: it differs from machine to machine, counts do not."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: What is named after the fence.
        text: The lines inside.
        line: Number of the line after the fence.
        output: Text of the ``text`` block that follows at once; None if none does.
    """

    language: str
    text: str
    line: int
    output: str | None = None


def blocks_of(markdown):
    """Return the blocks in order, each with the output that the file shows for it."""
    blocks = []
    for match in FENCE.finditer(markdown):
        shown = FENCE.match(markdown, match.end() + 1)
        blocks.append(
            Block(
                language=match[1],
                text=match[2],
                line=markdown.count("\n", 0, match.start()) + 2,
                output=shown[2] if shown and shown[1] == "text" else None,
            )
        )
    return blocks


def matches(shown, printed):
    """Whether what a file shows is what was printed, but for measured numbers."""
    shown, printed = DECIMAL.sub("#", shown), DECIMAL.sub("#", printed)
    parts = [
        ".*" if line == ELLIPSIS else re.escape(line.rstrip())
        for line in shown.strip().splitlines()
    ]
    text = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch("\n".join(parts), text, re.DOTALL) is not None
