"""Print a program graph as text and parse it back: same graph, same text.

Golden files, bug reports and tests use this form, never a framework's own::

    %x: f32[2,3] input
    %weight: f32[4,3] parameter
    %least: f32[] constant = 1e-08
    linear = linear(%x, %weight) -> %linear: f32[2,4]
      | native="aten.linear.default" path="head" contracted=3
    return %linear

An output that replaces an input is written ``%new into %old``, and the last line of a
program of which gradients are recorded ``taped return``. Lines that begin with
``#`` are comments.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, cast, get_args

from amprewrite.dtypes import from_short_name, short_name
from amprewrite.errors import GraphError
from amprewrite.ir.graph import Op, ProgramGraph, States, Value, ValueKind

_OP_HEAD = ("name", "canonical", "operands", "results")
_FACTS = tuple(f for f in fields(Op) if f.name not in _OP_HEAD)
COMMENT = "# "
"""Beginning of a line that is no part of a graph."""

_TAPED = "taped "
"""Word before ``return`` in a program of which gradients are recorded."""

_VALUE = re.compile(
    r"%(\S+): ([^\[\]\s]+)\[([^\]]*)\](?: alias %(\S+))?(?: (\w+))?(?: = (.+))?$"
)
_OP = re.compile(r"(\S+) = (\S+)\((.*?)\)(?: ->(.*))?$")


def value_text(value: Value) -> str:
    """Return ``%name: f32[2,3]``, the form that errors and reports use."""
    return f"%{value.name}: {tensor_text(value.dtype, value.shape)}"


def tensor_text(dtype: str, shape: tuple[int | str, ...]) -> str:
    """Return ``f32[2,3]``."""
    return f"{short_name(dtype)}[{','.join(map(str, shape))}]"


def _declaration(value: Value) -> str:
    alias = "" if value.alias == value.name else f" alias %{value.alias}"
    kind = "" if value.kind == "result" else f" {value.kind}"
    numbers = f" = {', '.join(map(repr, value.numbers))}" if value.numbers else ""
    return value_text(value) + alias + kind + numbers


def _fact_text(op: Op) -> str:
    facts: list[str] = []
    for field in _FACTS:
        found = getattr(op, field.name)
        if found not in ("", field.default):
            facts.append(f"{field.name}={json.dumps(found)}")
    return " ".join(facts)


def print_graph(graph: ProgramGraph) -> str:
    """Return the text of ``graph``; equal graphs have equal texts."""
    lines = [_declaration(value) for value in graph.inputs()]
    for op in graph.ops:
        results = "; ".join(_declaration(graph.values[name]) for name in op.results)
        operands = ", ".join(f"%{name}" for name in op.operands)
        lines.append(f"{op.name} = {op.canonical}({operands}) -> {results}".rstrip())
        if facts := _fact_text(op):
            lines.append(f"  | {facts}")
    head = f"{_TAPED}return" if graph.taped else "return"
    lines.append(f"{head} {', '.join(_output_texts(graph))}".rstrip())
    return "\n".join(lines) + "\n"


def _output_texts(graph: ProgramGraph) -> Iterator[str]:
    states = dict(graph.states)
    for index, name in enumerate(graph.outputs):
        yield f"%{name} into %{states[index]}" if index in states else f"%{name}"


def outline(graph: ProgramGraph) -> str:
    """Return the text of ``graph`` without the lines of facts; it still parses."""
    lines = print_graph(graph).splitlines()
    return "\n".join(line for line in lines if not line.startswith("  |"))


def _parse_value(text: str, line: int) -> Value:
    match = _VALUE.match(text.strip())
    if match is None:
        msg = f"line {line}: {text.strip()!r} is no value; want '%name: f32[2,3]'"
        raise GraphError(msg)
    name, dtype, shape, alias, kind, numbers = match.groups()
    if kind is not None and kind not in get_args(ValueKind):
        msg = (
            f"line {line}: unknown kind {kind!r}; want {', '.join(get_args(ValueKind))}"
        )
        raise GraphError(msg)
    extents = tuple(int(d) if d.lstrip("-").isdigit() else d for d in _extents(shape))
    checked = cast("ValueKind", kind or "result")
    parts = tuple(float(part) for part in _split(numbers or "", ","))
    return Value(name, from_short_name(dtype), extents, checked, alias or "", parts)


def _extents(text: str) -> list[str]:
    """Split at the commas outside parentheses: ``Max(1,s0)`` is one extent."""
    extents: list[str] = []
    for part in text.split(",") if text else ():
        if extents and extents[-1].count("(") > extents[-1].count(")"):
            extents[-1] += f",{part}"
        else:
            extents.append(part)
    return extents


def _freeze(found: object) -> object:
    """Return a fact as ops store it: a list from JSON as a tuple."""
    return tuple(cast("list[object]", found)) if isinstance(found, list) else found


def _parse_facts(text: str, line: int) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    known = {field.name for field in _FACTS}
    while text := text.strip():
        key, _, rest = text.partition("=")
        if key not in known:
            words = ", ".join(sorted(known))
            msg = f"line {line}: unknown fact {key!r}; want one of {words}"
            raise GraphError(msg)
        try:
            found, end = decoder.raw_decode(rest)
        except json.JSONDecodeError as error:
            msg = f"line {line}: fact {key!r} has no value in JSON: {rest!r}"
            raise GraphError(msg) from error
        yield key, _freeze(found)
        text = rest[end:]


def _split(text: str, mark: str) -> list[str]:
    return [part.strip() for part in text.split(mark) if part.strip()]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.removeprefix("%") for part in _split(text, ","))


def _parse_outputs(text: str) -> tuple[tuple[str, ...], States]:
    pairs = [part.partition(" into ") for part in _split(text, ",")]
    named = enumerate(state.removeprefix("%") for _, _, state in pairs)
    outputs = tuple(name.removeprefix("%") for name, _, _ in pairs)
    return outputs, tuple((index, state) for index, state in named if state)


def parse_graph(text: str) -> ProgramGraph:
    """Return the graph that :func:`print_graph` printed.

    Raises:
        GraphError: Names the line that does not parse.
    """
    values: dict[str, Value] = {}
    heads: list[tuple[str, str, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = []
    outputs: tuple[str, ...] = ()
    states: States = ()
    taped = False
    for number, line in enumerate(text.splitlines(), 1):
        end = line.removeprefix(_TAPED)
        if end.split(" ")[0] == "return":
            outputs, states = _parse_outputs(end.removeprefix("return"))
            taped = end != line
        elif line.startswith("%"):
            value = _parse_value(line, number)
            values[value.name] = value
        elif line.startswith("  | "):
            if not heads:
                msg = f"line {number}: facts before the first op"
                raise GraphError(msg)
            heads[-1][-1].update(_parse_facts(line[4:], number))
        elif match := _OP.match(line):
            name, canonical, operands, made = match.groups()
            results = [_parse_value(part, number) for part in _split(made or "", ";")]
            values.update({value.name: value for value in results})
            names = tuple(value.name for value in results)
            heads.append((name, canonical, _names(operands), names, {"native": ""}))
        elif line.strip() and not line.startswith(COMMENT):
            msg = f"line {number}: {line!r} is no value, op, facts or return"
            raise GraphError(msg)
    ops = tuple(
        Op(name=n, canonical=c, operands=i, results=o, **facts)
        for n, c, i, o, facts in heads
    )
    return ProgramGraph(values, ops, outputs, states, taped)
