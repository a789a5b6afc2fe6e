"""The table of all ops, from ``ops.toml``: read strictly, once, when it is needed."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from amprewrite.errors import OpTableError
from amprewrite.ops.traits import UNKNOWN, OperandRule, OpTraits, op_keys

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
