"""The page of differences between promotion systems, as Markdown."""

from collections.abc import Iterator, Sequence

from amprewrite.dtypes import Operand, short_name
from amprewrite.dtypes.differences import (
    JAX,
    JAX32,
    NUMBERS,
    NUMPY,
    NUMPY1,
    TORCH,
    Pairs,
    System,
    count,
    differences,
    grouped,
)
from amprewrite.dtypes.operands import OperandLike
from amprewrite.report.promotion import shown

COMMAND = "amprewrite promote --differences"
"""Command that writes the page."""

_PAGE = f"""\
# Where promotion differs

<!-- Written by `{COMMAND} > docs/promotion.md`; a test compares. -->

JAX has one lattice. torch first asks for the kind of the operands (bool, integer,
float, complex), lets 0-d tensors and Python numbers change the kind only, and promotes
unsigned integers above 8 bits with floats only. NumPy takes the first dtype to which
every cast is safe, so that 32-bit integers make floats of 64 bits. NumPy 1 promotes
arrays as NumPy 2 does; beside them, a 0-d array or a number of no higher kind counts as
the least dtype that holds its value (0-d arrays have the value 1 here). The rules of
each are held to the live library by tests; this page is computed from them.

Dtypes have their short names: `b1` is bool, `u8` uint8, `bf16` bfloat16, `c64`
complex64. `*` marks a weak result, which adapts to the next operand; `error` an
undefined one. `amprewrite promote A B` gives the reason for a result.
"""

_SECTIONS: tuple[tuple[str, Pairs, tuple[tuple[System, ...], ...]], ...] = (
    (
        "Two arrays",
        "arrays",
        ((JAX, TORCH), (JAX32, TORCH), (JAX, JAX32), (JAX, NUMPY), (TORCH, NUMPY)),
    ),
    (
        "An array and a 0-d array",
        "zero_d",
        ((JAX, TORCH), (JAX32, TORCH), (NUMPY, NUMPY1)),
    ),
    ("An array and a Python number", "numbers", ((JAX, TORCH, NUMPY), (JAX32, TORCH))),
    ("An array and a number of some value", "values", ((NUMPY, NUMPY1),)),
)


def differences_page() -> str:
    """Return the page of differences as Markdown."""
    parts = [_PAGE]
    for title, pairs, comparisons in _SECTIONS:
        parts.append(f"\n## {title}\n")
        parts += [_section(systems, pairs) for systems in comparisons]
    return "".join(parts)


def _section(systems: Sequence[System], pairs: Pairs) -> str:
    found = differences(systems, pairs)
    titles = [system.title for system in systems]
    rows = [
        " | ".join([*map(shown, results), "; ".join(_sums(groups))])
        for results, groups in grouped(found).items()
    ]
    return "\n".join(
        [
            "",
            f"### {' against '.join(titles)}",
            "",
            f"{len(found)} of {count(systems, pairs)} pairs differ.",
            "",
            f"| {' | '.join(titles)} | pairs |",
            "|---" * (len(titles) + 1) + "|",
            *(f"| {row} |" for row in rows),
            "",
        ]
    )


def _sums(groups: dict[OperandLike, list[OperandLike]]) -> Iterator[str]:
    """Yield ``a, b + c, d``, with operands that have the same partners merged."""
    alike: dict[tuple[OperandLike, ...], list[OperandLike]] = {}
    for a, others in groups.items():
        alike.setdefault(tuple(others), []).append(a)
    for others, firsts in alike.items():
        is_zero_d = isinstance(others[0], Operand)
        joined = ", ".join(map(_name, others))
        yield f"{', '.join(map(_name, firsts))} + {'0-d ' * is_zero_d}{joined}"


def _name(operand: OperandLike) -> str:
    if isinstance(operand, str):
        return short_name(operand)
    if isinstance(operand, Operand):
        return short_name(operand.dtype)
    return type(operand).__name__ if operand in NUMBERS else repr(operand)
