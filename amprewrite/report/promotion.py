"""Promotion as an answer with its derivation, and as a table."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from amprewrite.dtypes import FORMATS, Operand, ResultType, from_short_name, short_name
from amprewrite.dtypes.differences import (
    DTYPES,
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
from amprewrite.dtypes.explain import explain
from amprewrite.dtypes.op_rules import rule_of
from amprewrite.dtypes.operands import OperandLike
from amprewrite.dtypes.processor import Behaviour, Processor, Promoted, Rule
from amprewrite.dtypes.promotion import result_type
from amprewrite.errors import PromotionError

UNDEFINED = "error"
"""Text for operands that have no common dtype."""


# --- one answer --------------------------------------------------------------------


class Answer(NamedTuple):
    """Result type of operands in one promotion system, with its derivation."""

    operands: tuple[OperandLike, ...]
    system: System
    result: ResultType
    why: tuple[str, ...]

    def __str__(self) -> str:
        """Return the sum in one line, and below it a line for each reason."""
        weak = "weak " if self.result.weak else ""
        given = " + ".join(map(str, self.operands))
        head = f"{given} = {weak}{self.result.dtype} ({self.system.title})"
        return "\n  ".join([head, *self.why])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "operands": [str(x) for x in self.operands],
            "system": self.system.name,
            "x64": self.system.x64,
            **self.result._asdict(),
            "why": list(self.why),
        }


def answer(texts: Sequence[str], system: str = "jax", *, x64: bool = False) -> Answer:
    """Return the result type of the operands that ``texts`` spell.

    Raises:
        PromotionError: A text names no operand, or they have no common dtype.
    """
    operands = tuple(map(parse_operand, texts))
    result, why = explain(*operands, system=system, x64=x64)
    return Answer(operands, System(system, x64), result, tuple(why))


class OpAnswer(NamedTuple):
    """Dtypes of an op on operands, and the casts that it needs."""

    op: str
    operands: tuple[OperandLike, ...]
    system: System
    rule: Rule
    promoted: Promoted
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the call in one line, below it the rule, steps and casts."""
        given = ", ".join(map(str, self.operands))
        made = f"computes {self.promoted.computes}, gives {self.promoted.dtype}"
        equal = "; torch refuses unequal dtypes" * self.rule.needs_equal
        casts = zip(self.operands, self.promoted.casts, strict=True)
        return "\n".join(
            [
                f"{self.op}({given}) {made} ({self.system.title})",
                f"  rule {self.rule.behaviour}{equal}",
                *(f"  {n}. {step}" for n, step in enumerate(self.steps, 1)),
                *(f"  {x}: {f'cast to {to}' if to else 'no cast'}" for x, to in casts),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "op": self.op,
            "operands": [str(x) for x in self.operands],
            "system": self.system.name,
            "x64": self.system.x64,
            "rule": str(self.rule.behaviour),
            "needs_equal": self.rule.needs_equal,
            **asdict(self.promoted),
            "casts": list(self.promoted.casts),
            **({"steps": list(self.steps)} if self.steps else {}),
        }


def op_answer(
    op: str,
    texts: Sequence[str],
    system: str = "jax",
    *,
    x64: bool = False,
    steps: bool = False,
) -> OpAnswer:
    """Return the dtypes and casts of the op ``op`` on the operands ``texts`` spell.

    Args:
        op: Its canonical name.
        texts: See :func:`parse_operand`.
        system: The promotion system.
        x64: For JAX: whether 64-bit dtypes are enabled.
        steps: Whether to include the steps of the rule.

    Raises:
        PromotionError: There is no rule for the op, a text names no operand, or they
            have no common dtype.
        ComplexTruncationError: The op would drop imaginary parts.
    """
    operands = tuple(map(parse_operand, texts))
    rule = rule_of(op)
    promoted = Processor(system, x64=x64).apply(rule, *operands)
    chosen = System(system, x64)
    why = tuple(_steps(rule, operands, promoted, chosen)) if steps else ()
    return OpAnswer(op, operands, chosen, rule, promoted, why)


_ROLES = {"p": "a parameter", "-": "no operand that promotes: an index, mask or count"}


def _steps(
    rule: Rule, operands: Sequence[OperandLike], promoted: Promoted, system: System
) -> Iterator[str]:
    """Yield the steps of the processor in order: join, compute, result, cast.

    Source: OneFlow's TensorProcessor, which takes these steps in its functional layer.
    """
    roles = rule.roles_of(len(operands))
    pairs = list(zip(operands, roles, strict=True))
    yield from (f"{x} is {_ROLES[role]}" for x, role in pairs if role in _ROLES)
    joined = [x for x, role in pairs if role == "x"]
    if rule.behaviour in (Behaviour.FOLLOW_SELF, Behaviour.PRESERVE):
        joined = joined[:1]
    result, why = explain(*joined, system=system.name, x64=system.x64)
    names = " and ".join(map(str, joined))
    yield f"{names} make {result.dtype}: {'; '.join(why)}"
    if promoted.computes == result.dtype:
        yield f"it computes in {promoted.computes}"
    else:
        yield f"rule {rule.behaviour} lifts it: it computes in {promoted.computes}"
    weak = "weak " * promoted.weak
    yield f"it gives {weak}{promoted.dtype}"


def parse_operand(text: str) -> OperandLike:
    """Return the operand that ``text`` spells.

    A dtype, long or short, is an array: ``bfloat16``, ``bf16``; with ``[]`` behind it
    a 0-d array, ``i64[300]`` one of that value; with ``*`` a weak one. ``1``, ``1.0``,
    ``1j`` and ``True`` are numbers.

    Raises:
        PromotionError: It is none of these.
    """
    number = _number(text)
    if number is not None:
        return number
    parts = _OPERAND.fullmatch(text)
    if parts is None:
        return Operand(from_short_name(text))
    name, inside, weak = parts.groups()
    value = _number(inside or "")
    if inside and value is None:
        raise PromotionError(f"operand {text!r}: found {inside!r} in []; want a number")
    ndim = 1 if inside is None else 0
    return Operand(from_short_name(name), ndim=ndim, weak=bool(weak), value=value)


_OPERAND = re.compile(r"(\w+)(?:\[(.*)\])?(\*?)")
"""A dtype, a value in brackets, a star; only the dtype must be there."""


def _number(text: str) -> bool | int | float | complex | None:
    if text in ("True", "False"):
        return text == "True"
    for number in (int, float, complex):
        try:
            return number(text)
        except ValueError:
            continue
    return None


# --- tables ------------------------------------------------------------------------


def cells(system: System, dtypes: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each dtype: its name, and its promotion with each dtype."""
    for a in dtypes:
        yield [short_name(a), *(shown(system.result(a, b)) for b in dtypes)]


def promotion_table(system: str, *, x64: bool = False) -> Table:
    """Return the table of promotions between the common dtypes.

    Raises:
        PromotionError: There is no such system.
    """
    chosen = _system(system, x64=x64)
    table = Table(box=box.SIMPLE_HEAD, title=chosen.title, title_justify="left")
    for head in ("", *map(short_name, chosen.dtypes)):
        table.add_column(head, no_wrap=True)
    for row in cells(chosen, chosen.dtypes):
        table.add_row(*map(Text, row))
    return table


def promotion_json(system: str, *, x64: bool = False) -> dict[str, Any]:
    """Return the promotions between all dtypes of a system, as JSON data.

    Raises:
        PromotionError: There is no such system.
    """
    chosen = _system(system, x64=x64)
    known = [x for x in FORMATS if chosen.result(x) is not None]
    pairs = {a: {b: chosen.result(a, b) for b in known} for a in known}
    return {
        "system": system,
        "x64": x64,
        "table": {
            a: {b: x and x._asdict() for b, x in row.items()}
            for a, row in pairs.items()
        },
    }


def _system(name: str, *, x64: bool) -> System:
    result_type(DTYPES[0], system=name)  # it raises where there is no such system
    return System(name, x64)


def shown(result: ResultType | None) -> str:
    """Return the short name of a result, with ``*`` where it is weak."""
    if result is None:
        return UNDEFINED
    return short_name(result.dtype) + ("*" if result.weak else "")


# The page of differences between promotion systems, as Markdown.

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
