"""Fingerprint of a program, as readable lines, to recognise it later."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from amprewrite.errors import PlanMismatchError
from amprewrite.ir import ProgramGraph, Value

# Lines of a fingerprint: written from values and ops, and read back.
#
# A plan holds its program as these lines, so that the flow of values between its ops
# can be drawn and followed without the model.

RETURN = "return"
"""First word of the line of the outputs."""

_MADE, _IN = ") -> ", " in "
"""Texts before the results of an op, and before its region."""

_VALUE = re.compile(
    r"%(.+?): (\w+) (\d+)d(?: (input|parameter|buffer|constant))?"
    r"(?=, %|\) -> | in |; output |$)"
)
_HEAD = re.compile(r"(.+?) = (.*?)\((?=%|\) -> )")
_STATE = re.compile(r"; output (\d+) replaces %(.+?)(?=; output \d+ replaces %|$)")


@dataclass(frozen=True, slots=True)
class LineValue:
    """One value in a line.

    Attributes:
        name: Its name, unique in the program.
        dtype: Dtype that it was traced with.
        rank: Number of its dimensions.
        kind: Origin of a value that no op makes: an input, parameter, ...; else empty.
    """

    name: str
    dtype: str
    rank: int
    kind: str = ""

    def __str__(self) -> str:
        """Return its text in a line."""
        where = f" {self.kind}" if self.kind else ""
        return f"%{self.name}: {self.dtype} {self.rank}d{where}"


@dataclass(frozen=True, slots=True)
class OpLine:
    """The line of one op: its names, its operands, its results, its region."""

    name: str
    native: str
    operands: tuple[LineValue, ...]
    results: tuple[LineValue, ...]
    region: str = ""

    def __str__(self) -> str:
        """Return the line."""
        read, made = _text(self.operands), _text(self.results)
        return line_text(self.name, self.native, read, made, self.region)


def line_text(name: str, native: str, read: str, made: str, region: str) -> str:
    """Return the line of an op, from its names and the texts of its values."""
    where = f" in {region}" if region else ""
    return f"{name} = {native}({read}) -> {made}{where}"


@dataclass(frozen=True, slots=True)
class EndLine:
    """The last line: the outputs, and the inputs that some of them replace."""

    outputs: tuple[LineValue, ...]
    states: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        """Return the line."""
        replaced = (f"; output {index} replaces %{name}" for index, name in self.states)
        return f"{RETURN} {_text(self.outputs)}{''.join(replaced)}"


@dataclass(frozen=True, slots=True)
class Lines:
    """One program: its ops in order, and its end."""

    ops: tuple[OpLine, ...]
    end: EndLine


def read_programs(lines: Iterable[str]) -> tuple[Lines, ...]:
    """Return the programs that ``lines`` hold, as ``Plan.program`` has them.

    Returns:
        One program; several for a plan joined from several graphs; none if there are no
        lines.

    Raises:
        PlanMismatchError: A line is none of a fingerprint, or the end is missing.
    """
    found: list[Lines] = []
    ops: list[OpLine] = []
    for number, line in enumerate(lines, start=1):
        if (end := _end(line)) is not None:
            found.append(Lines(tuple(ops), end))
            ops = []
        elif (op := _op(line)) is not None:
            ops.append(op)
        else:
            msg = (
                f"line {number} of the plan's program is {line[:80]!r}; want a line as "
                f"the fingerprint writes it: convert the model again, or load a plan "
                f"that Plan.save wrote"
            )
            raise PlanMismatchError(msg)
    if ops:
        msg = (
            f"the plan's program ends with {str(ops[-1])[:80]!r}; want a line of its "
            f"outputs: load the whole file that Plan.save wrote"
        )
        raise PlanMismatchError(msg)
    return tuple(found)


def _op(line: str) -> OpLine | None:
    """Return the op of a line; None if it is no line of an op."""
    head = _HEAD.match(line)
    if head is None:
        return None
    read, stop = _parse_values(line, head.end())
    if not line.startswith(_MADE, stop):
        return None
    made, stop = _parse_values(line, stop + len(_MADE))
    name, native = head.groups()
    if stop == len(line):
        return OpLine(name, native, read, made)
    region = line[stop + len(_IN) :] if line.startswith(_IN, stop) else ""
    return OpLine(name, native, read, made, region) if region else None


def _end(line: str) -> EndLine | None:
    """Return the outputs of a line; None if it is not the last one of a program."""
    if not line.startswith(f"{RETURN} ") or _HEAD.match(line):
        return None
    outputs, stop = _parse_values(line, len(RETURN) + 1)
    states = tuple((int(at), name) for at, name in _STATE.findall(line, stop))
    end = EndLine(outputs, states)
    return end if str(end) == line else None


def _parse_values(line: str, start: int) -> tuple[tuple[LineValue, ...], int]:
    """Return the values from ``start`` on, and the position after the last."""
    found: list[LineValue] = []
    while (value := _VALUE.match(line, start)) is not None:
        name, dtype, rank, kind = value.groups()
        found.append(LineValue(name, dtype, int(rank), kind or ""))
        start = value.end()
        if not line.startswith(", %", start):
            break
        start += len(", ")
    return tuple(found), start


def _text(values: Iterable[LineValue]) -> str:
    return ", ".join(map(str, values))


def fingerprint(graph: ProgramGraph) -> tuple[str, ...]:
    """Return one line for each op, in order, and one for the outputs.

    An op's line has its name, its native name, its operands and its results, each with
    dtype and rank. Extents are left out, so that a plan fits other batch sizes.
    """
    values = {name: _value(value) for name, value in graph.values.items()}
    texts = {name: str(value) for name, value in values.items()}  # each is read often
    ops = [
        line_text(
            op.name,
            op.native or op.canonical,
            ", ".join([texts[name] for name in op.operands]),
            ", ".join([texts[name] for name in op.results]),
            op.region,
        )
        for op in graph.ops
    ]
    outputs = tuple(values[name] for name in graph.outputs)
    return (*ops, str(EndLine(outputs, graph.states)))


def _value(value: Value) -> LineValue:
    kind = "" if value.kind == "result" else value.kind
    return LineValue(value.name, value.dtype, len(value.shape), kind)


def first_difference(
    found: tuple[str, ...], planned: tuple[str, ...]
) -> tuple[str, str, str] | None:
    """Return the first difference of two fingerprints: the name, and both lines.

    Args:
        found: Fingerprint of a program.
        planned: Fingerprint of the program that a plan was made for.

    Returns:
        None if they are equal. A missing line is given as ``nothing``.
    """
    for one, other in zip_longest(found, planned, fillvalue=""):
        if one != other:
            name = (one or other).partition(" ")[0]
            return name, one or "nothing", other or "nothing"
    return None
