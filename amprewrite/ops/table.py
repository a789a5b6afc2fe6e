"""The table of all ops, from ``ops.toml``: read strictly, once, when it is needed."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from amprewrite.errors import OpTableError

# Traits of one op: the keys of a line in ``ops.toml``.

OperandRule = Literal["equal", "promote", "lead", "any"]
"""Kernel rule for operands of different float dtypes, see :class:`OpTraits`."""


class Group(StrEnum):
    """Groups that passes ask for; ``[groups]`` of ``ops.toml`` has these and others."""

    ATTENTION = "attention"
    CAST = "cast"
    COMPARISON = "comparison"
    CONVOLUTION = "convolution"
    EXPONENTIAL = "exponential"
    LOGARITHM = "logarithm"
    LOOKUP = "lookup"
    MEAN = "mean"
    MOVEMENT = "movement"
    POINTWISE = "pointwise"
    SELECTION = "selection"
    SQUARE = "square"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Facts about an op; the names are those of the keys in ``ops.toml``.

    Attributes:
        group: Kind of op, by which policies class it. Empty if not known.
        operand_rule: Treatment of operands of different float dtypes by ATen's kernel
            (primitives of JAX need equal ones): ``equal`` refuses them; ``promote``
            computes in the widest of those with dimensions, by a cast inside the kernel
            that costs nothing; ``lead`` takes the dtype of the first and accepts wider
            ones beside it; ``any`` converts them itself or reads only their metadata.
            Source: run on a CPU in eager, with float32 and bfloat16 operands; ``cat``,
            ``where`` and the in-place scatters are left at equal: not every overload
            and device promotes.
        exact_argument: Whether the result jumps, or turns, on a small error of a large
            argument, so that the ops that compute the argument are never lowered.
        exact_from: Index of the first operand that is such an argument: positions in
            an image, after the image.
        bends: Whether it bends or bounds what it reads, so that an argument need not be
            exact beyond it: activations, softmaxes, normalisations.
        curves: Whether it is a curve without bounds, so that what the test of a loop
            compares need not be exact beyond it.
        statistic: Whether it is a reduction that other ops compute with, so that a
            rounding of the result may grow: ``mean(x * x) - mean(x) ** 2``.
        first_moment: Whether it is a sum or a mean, which programs subtract.
        scales: Whether it is a product or a quotient, which turns a sum into a mean.
        singular: Whether it, or its derivative, has no bound near 0 or 1, though
            policies let it run low: what guards its argument is read in full.
        filler: Whether it fills a tensor with one number, which can be made in any
            dtype.
        orders: Whether it compares which number is larger; complex ones have no order.
            JAX's softmax contains such an op.
        chooses: Whether it returns some of its operands' values, so that a program may
            compare them: ``x == max(x, y)``.
        has_dtype_argument: Whether it computes in the dtype that its ``dtype=``
            argument names, where it has the argument. ``linalg_matrix_norm`` has it
            too, but refuses a low operand beside it where it needs a factorisation.
        rounds_inside: Text about roundings inside ATen's low kernel, other than of its
            results; empty if there are none. Source: see
            ``frameworks.torch_fx.probes.kernel_rounding``.
        rounds_inside_from: Least number of operands with which it rounds inside.
        addend_first: Whether a product has its addend before its factors.
        aten: Other ATen packets that are this op; the packet of the op's own name is
            one without being listed.
        jax: Other JAX primitives that are this op; the one of the op's own name, also
            with dashes, is one without being listed.
    """

    group: str = ""
    operand_rule: OperandRule = "equal"
    exact_argument: bool = False
    exact_from: int = 0
    bends: bool = False
    curves: bool = False
    statistic: bool = False
    first_moment: bool = False
    scales: bool = False
    singular: bool = False
    filler: bool = False
    orders: bool = False
    chooses: bool = False
    has_dtype_argument: bool = False
    rounds_inside: str = ""
    rounds_inside_from: int = 0
    addend_first: bool = False
    aten: tuple[str, ...] = ()
    jax: tuple[str, ...] = ()


UNKNOWN = OpTraits()
"""Traits of an op without a line."""


def op_keys(canonical: str, native: str = "") -> Iterator[str]:
    """Yield the names by which a table may list an op, the most exact one first.

    Args:
        canonical: The op's name in policies, such as ``softmax``.
        native: The framework's name: ``aten.softmax.int`` is also ``aten.softmax`` and
            ``aten::softmax``, as torch writes it. Empty if there is none.
    """
    yield native
    packet, dot, _ = native.rpartition(".")
    if dot:
        yield packet
        yield packet.replace(".", "::", 1)
    yield canonical


def line_key(canonical: str, native: str = "") -> str:
    """Return the name by which a line for an op is written: ``mylib::cube``.

    Args:
        canonical: The op's name in policies; that of a custom operator is qualified.
        native: The framework's name.
    """
    qualified = canonical == native.rpartition(".")[0]
    return canonical.replace(".", "::", 1) if qualified else canonical


Framework = Literal["aten", "jax"]

FILE = Path(__file__).with_name("ops.toml")
"""The table."""

TABLES = ("groups", "ops")

_KINDS: Mapping[str, type[object]] = {
    field.name: type(cast("object", getattr(UNKNOWN, field.name)))
    for field in fields(OpTraits)
}
"""The type of value of each key; a list of names in the file becomes a tuple."""

_WANTED: Mapping[type[object], str] = {
    bool: "true or false",
    int: "a number",
    str: "a text",
    tuple: "a list",
}


@dataclass(frozen=True)
class OpTable:
    """The table of all known ops.

    Attributes:
        groups: Description of each group.
        ops: Traits of each op, by canonical name.
        aten: Canonical name by ATen packet, for packets of another name.
        jax: Canonical name by JAX primitive, for primitives of another name.
    """

    groups: Mapping[str, str]
    ops: Mapping[str, OpTraits]
    aten: Mapping[str, str]
    jax: Mapping[str, str]

    def members(self, group: str) -> Iterator[str]:
        """Yield the ops of ``group``, in the order of the table."""
        return (name for name, traits in self.ops.items() if traits.group == group)


@cache
def op_table() -> OpTable:
    """Return the table of all ops.

    Raises:
        OpTableError: Lists every mistake with its key.
    """
    return parse_table(FILE.read_text("utf-8"), FILE.name)


@cache
def traits_of(canonical: str, native: str = "") -> OpTraits:
    """Return the traits of an op; :data:`UNKNOWN` if it has no line.

    Args:
        canonical: The op's name in policies.
        native: The framework's name, by which an operator of the user's may be listed:
            ``mylib::cube`` is the line of ``mylib.cube.default``.
    """
    ops = op_table().ops
    if canonical in ops:
        return ops[canonical]
    keys = op_keys(canonical, native)
    return next((ops[key] for key in keys if key in ops), UNKNOWN)


def parse_table(text: str, where: str) -> OpTable:
    """Return the table that ``text`` defines.

    Args:
        text: TOML: ``[groups]`` with a text for each, ``[ops]`` with a line for each
            op, such as ``"mylib::cube" = { group = "pointwise" }``.
        where: Name of the text in messages.

    Raises:
        OpTableError: Lists every mistake with its key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{where}: is no TOML: {error}; an op has only one line"
        raise OpTableError(msg) from error
    mistakes = [
        f"{key}: unknown table; want {' and '.join(TABLES)}"
        for key in data
        if key not in TABLES
    ]
    found, lines = (_table(data, key, mistakes) for key in TABLES)
    groups: dict[str, str] = {}
    shared: dict[str, dict[str, Any]] = {}
    for group, words in found.items():
        groups[group], shared[group] = _group(group, words, mistakes)
    ops: dict[str, OpTraits] = {}
    for name, line in lines.items():
        wrong = list(_mistakes_of_line(line, groups))
        mistakes += (f"ops.{name}{mistake}" for mistake in wrong)
        if not wrong:
            own = cast("dict[str, Any]", line)
            ops[name] = _traits({**shared[own["group"]], **own})
    aten, jax = (_spellings(ops, framework, mistakes) for framework in _FRAMEWORKS)
    if mistakes:
        msg = f"{where}: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"
        raise OpTableError(msg, mistakes)
    fixed = MappingProxyType[str, str]
    return OpTable(fixed(groups), MappingProxyType(ops), fixed(aten), fixed(jax))


_FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)


def _table(data: Mapping[str, Any], key: str, mistakes: list[str]) -> dict[str, Any]:
    found = data.get(key, {})
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    mistakes.append(f"{key}: found {found!r}; want a table [{key}]")
    return {}


def _group(group: str, line: object, mistakes: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the description of a group, and the traits that all of its ops have."""
    shared: dict[str, Any] = (
        dict(cast("dict[str, Any]", line)) if isinstance(line, dict) else {}
    )
    about = shared.pop("about", None) if isinstance(line, dict) else line
    if not isinstance(about, str):
        want = 'a text, or a table such as { about = "...", bends = true }'
        mistakes.append(f"groups.{group}: found {line!r}; want {want}")
    for key, value in shared.items():
        if _KINDS.get(key) is not bool or value is not True:
            want = "a fact of all its ops, as bends = true"
            mistakes.append(f"groups.{group}.{key}: found {value!r}; want {want}")
    return str(about), shared


def _mistakes_of_line(line: object, groups: Mapping[str, object]) -> Iterator[str]:
    """Yield the mistakes in the line of an op, to be put after its key."""
    if not isinstance(line, dict):
        yield f': found {line!r}; want a table such as {{ group = "pointwise" }}'
        return
    table = cast("dict[str, object]", line)
    for key, value in table.items():
        kind = _KINDS.get(key)
        if kind is None:
            yield f".{key}: unknown key; want one of {', '.join(_KINDS)}{_near(key)}"
        elif not _is_kind(value, kind):
            yield f".{key}: found {value!r}; want {_WANTED[kind]}"
    group, rule = table.get("group"), table.get("operand_rule", "equal")
    if group is None:
        yield ": has no group; every op needs one of [groups]"
    elif isinstance(group, str) and group not in groups:
        near = get_close_matches(group, groups, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        yield f".group: unknown group {group!r}; want one of [groups]{hint}"
    if isinstance(rule, str) and rule not in get_args(OperandRule):
        want = ", ".join(get_args(OperandRule))
        yield f".operand_rule: found {rule!r}; want one of {want}"


def _near(key: str) -> str:
    near = get_close_matches(key, _KINDS, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _is_kind(value: object, kind: type[object]) -> bool:
    if kind is not tuple:
        return type(value) is kind
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(isinstance(name, str) for name in names)


def _traits(line: Mapping[str, Any]) -> OpTraits:
    names: dict[str, Any] = {key: tuple(line.get(key, ())) for key in _FRAMEWORKS}
    return OpTraits(**{**line, **names})


def _spellings(
    ops: Mapping[str, OpTraits], framework: Framework, mistakes: list[str]
) -> dict[str, str]:
    """Return the op of each spelling, and report spellings of two ops as mistakes.

    Names of ops are those of ATen, so no other op may be spelled like one there. In JAX
    it may: its ``transpose`` is ``permute``.
    """
    found: dict[str, str] = {}
    for op, traits in ops.items():
        names: tuple[str, ...] = getattr(traits, framework)
        for name in names:
            taken = found.get(name, name if framework == "aten" and name in ops else "")
            if taken:
                mistakes.append(
                    f"ops.{op}.{framework}: {name!r} is {taken} already; want each "
                    f"spelling in one line"
                )
            found[name] = op
    return found
