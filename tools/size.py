"""Print the code lines of each package, and fail where one is over its budget.

    python -m tools.size

A code line is a line with a token that is neither a comment nor a docstring. Budgets
stand in pyproject.toml, in ``[tool.size]``: one for each folder of ``amprewrite``, for
each framework, for the modules of the root, and for ``tools``.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]

FOLDERS = ("amprewrite", "tools")
"""Folders with code that ships, or that builds what ships."""

LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
"""Tokens that a line of code has beside others."""


def code_lines(source: str) -> int:
    """Return the number of code lines of a module.

    Args:
        source: Text of the module.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in LAYOUT)
    return len({line for span in spans for line in span} - set(_text_lines(source)))


def _text_lines(source: str) -> Iterator[int]:
    """Yield the lines of docstrings, and of strings below an attribute."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
            case _:
                pass


def package_of(path: Path) -> str:
    """Return the name of the budget that a module counts towards.

    Args:
        path: Path of the module, relative to the root of the checkout.
    """
    folders = path.parts[:-1]
    return "/".join(folders[: 3 if folders[1:2] == ("frameworks",) else 2])


def sizes(root: Path) -> Counter[str]:
    """Return the code lines of each package, by the name of its budget."""
    lines = Counter[str]()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            lines[package_of(path.relative_to(root))] += code_lines(source)
    return lines


def budgets(root: Path) -> dict[str, int]:
    """Return the most code lines of each package, as pyproject.toml has them."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["tool"]["size"])


def excesses(lines: Mapping[str, int], most: Mapping[str, int]) -> list[str]:
    """Return an error for each package over its budget, without one, or gone.

    Args:
        lines: Code lines of each package.
        most: Budget of each package.
    """
    where = "[tool.size] of pyproject.toml"
    over = [
        f"{name} has {count:,} code lines, and a budget of {most[name]:,}: delete "
        f"{count - most[name]:,}, or raise the budget in {where} in a commit that says "
        "what the lines buy"
        for name, count in lines.items()
        if count > most.get(name, count)
    ]
    new = [
        f"{name} has {lines[name]:,} code lines and no budget: add it to {where}"
        for name in lines
        if name not in most
    ]
    gone = [
        f"{name} has a budget and no code: delete its line in {where}"
        for name in most
        if name not in lines
    ]
    return [*over, *new, *gone]


def main() -> int:
    """Print the table, and the errors; return the exit status."""
    lines, most = sizes(ROOT), budgets(ROOT)
    table = Table("package", "code lines", "budget", "left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in lines.most_common():
        limit = most.get(name, 0)
        table.add_row(name, f"{count:,}", f"{limit:,}", f"{limit - count:,}")
    total, limit = lines.total(), sum(most.values())
    table.add_section()
    table.add_row("all", f"{total:,}", f"{limit:,}", f"{limit - total:,}")
    Console().print(table)
    errors = excesses(lines, most)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
