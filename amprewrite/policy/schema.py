"""The policy file as pydantic models; all mistakes are reported, with their keys."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from amprewrite.dtypes import SYSTEMS, format_of
from amprewrite.dtypes.formats import EIGHT_BIT_FLOATS
from amprewrite.dtypes.promotion import STATIC_SYSTEMS
from amprewrite.errors import AmpError, PolicyError
from amprewrite.policy.model import Kernel, OpClass, Rule, Scaling
from amprewrite.policy.spelling import (
    OWN_PRIMITIVE,
    Spelling,
    near,
    unknown_group,
)

CLASSES = tuple(str(c) for c in OpClass)

OUTPUTS = ("as-traced", "low", "full")
"""Values of ``output`` other than the name of a dtype."""


SMALLEST = 16
"""Bits of the smallest float that ``low`` and ``full`` may name.

Computing in 8-bit floats needs a scale for each tensor, and kernels accept no unscaled
ones: a program in them fails at its first matmul.
"""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


def _known_float(name: str) -> str:
    try:
        kind = format_of(name).kind
    except AmpError as error:
        raise ValueError(str(error)) from error
    if kind != "float":
        raise ValueError(f"found {name!r}, of kind {kind}; want a floating dtype")
    return name


class DtypesTable(_Table):
    """The ``[dtypes]`` table."""

    low: str | None = None
    full: str | None = None
    output: str | None = None

    @field_validator("low", "full")
    @classmethod
    def _precision(cls, name: str | None, info: ValidationInfo) -> str | None:
        lowers_nothing = name == "" and info.field_name == "low"
        if name is None or lowers_nothing:
            return name
        bits = format_of(_known_float(name)).bits
        if bits < SMALLEST:
            raise ValueError(
                f"found {name!r}, of {bits} bits, which is no dtype between ops: "
                f"[contract] has formats inside of contractions; want float16, "
                f"bfloat16, float32 or float64"
            )
        return name

    @field_validator("output")
    @classmethod
    def _output(cls, name: str | None) -> str | None:
        return name if name in (None, *OUTPUTS) else _known_float(name)


class PlacementTable(_Table):
    """The ``[placement]`` table."""

    demand: bool | None = None
    weak_parameters: bool | None = None
    lookups: Literal["low", "full"] | None = None


class PromotionTable(_Table):
    """The ``[promotion]`` table."""

    system: str | None = None
    truncate_complex: bool | None = None

    @field_validator("system")
    @classmethod
    def _system(cls, name: str | None) -> str | None:
        if name in (None, "", *STATIC_SYSTEMS):
            return name
        want = _choices(STATIC_SYSTEMS)
        if name in SYSTEMS:
            msg = f"system {name!r} asks for values, which a plan has not; want {want}"
            raise ValueError(msg)
        hint = near(str(name), STATIC_SYSTEMS)
        raise ValueError(f"unknown system {name!r}; want {want}{hint}")


class ContractTable(_Table):
    """The ``[contract]`` table."""

    forward: str | None = None
    backward: str | None = None
    scaling: Scaling | None = None
    spare_residual: bool | None = None
    kernel: Kernel | None = None

    @field_validator("forward", "backward")
    @classmethod
    def _format(cls, name: str | None) -> str | None:
        if name in (None, "", *EIGHT_BIT_FLOATS):
            return name
        hint = near(str(name), EIGHT_BIT_FLOATS)
        want = _choices(EIGHT_BIT_FLOATS)
        raise ValueError(f"found {name!r}; want {want}{hint}")


class OpTable(_Table):
    """Table of one op or group with a reason: ``{ class = "deny", why = "..." }``."""

    op_class: OpClass = Field(alias="class")
    why: str = ""

    @field_validator("op_class", mode="before")
    @classmethod
    def _class(cls, name: object) -> object:
        return _known_class(name)


class RuleTable(OpTable):
    """One entry of ``[[rules]]``: keys that match ops, and the class."""

    path: str | None = None
    group: str | None = None
    op: str | None = None
    native: str | None = None
    op_name: str | None = None
    source: str | None = None

    def rule(self) -> Rule:
        """Return the rule in memory."""
        return Rule(**self.model_dump())


class PolicyFile(_Table):
    """A whole policy file."""

    extends: str | None = None
    description: str = ""
    dtypes: DtypesTable = DtypesTable()
    placement: PlacementTable = PlacementTable()
    promotion: PromotionTable = PromotionTable()
    contract: ContractTable = ContractTable()
    groups: dict[str, OpTable] = {}
    ops: dict[str, OpTable] = {}
    rules: list[RuleTable] = []

    @field_validator("groups", "ops", mode="before")
    @classmethod
    def _short_form(cls, classes: object) -> object:
        if not isinstance(classes, dict):
            return classes
        table = cast("dict[object, object]", classes)
        short = {
            key: {"class": v} for key, v in table.items() if not isinstance(v, dict)
        }
        return {**table, **short}


def _known_class(name: object) -> object:
    if isinstance(name, str) and name not in CLASSES:
        msg = f"unknown class {name!r}; want {_choices(CLASSES)}{near(name, CLASSES)}"
        raise ValueError(msg)
    return name


def _choices(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _fields_at(location: tuple[int | str, ...]) -> tuple[str, ...]:
    tables: Mapping[str, type[BaseModel]] = {
        "": PolicyFile,
        "dtypes": DtypesTable,
        "placement": PlacementTable,
        "promotion": PromotionTable,
        "contract": ContractTable,
        "groups": OpTable,
        "ops": OpTable,
        "rules": RuleTable,
    }
    model = tables[str(location[0]) if len(location) > 1 else ""]
    return tuple(f.alias or name for name, f in model.model_fields.items())


def _mistake(error: ErrorDetails, *table: str) -> str:
    location = (*table, *error["loc"])
    key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location)
    key = key.removeprefix(".")
    match error["type"]:
        case "extra_forbidden":
            words = _fields_at(location)
            hint = near(str(location[-1]), words)
            return f"{key}: unknown key; want one of {', '.join(words)}{hint}"
        case "missing":
            return f"{key}: missing; every rule, op and group table needs a class"
        case "value_error":
            return f"{key}: {error['msg'].removeprefix('Value error, ')}"
        case _:
            return f"{key}: found {error['input']!r}; {error['msg'].lower()}"


def _unknown_names(
    data: object, known: Collection[str], words: Collection[str]
) -> Iterator[str]:
    """Yield the mistakes in names, also of a file with mistakes of other kinds."""
    if not isinstance(data, dict):
        return
    table = cast("dict[str, object]", data)
    ops, spelling = tuple(_keys(table.get("ops"))), Spelling(known)
    for name in _keys(table.get("groups")):
        if message := unknown_group(name):
            yield f"groups.{name}: {message}"
    for name in ops:
        if message := spelling.mistake(name):
            yield f"ops.{name}: {message.replace(f' {name!r}', '')}"
    if spelling.rest:
        yield f"ops: {spelling.rest}"
    rules, spelling = table.get("rules"), Spelling((*words, *ops))
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):  # pyright: ignore[reportUnknownArgumentType]  # of any kind
        yield from (f"rules[{index}].{m}" for m in _names_of_rule(rule, spelling))
    if spelling.rest:
        yield f"rules: {spelling.rest}"


def _keys(table: object) -> Iterator[str]:
    if isinstance(table, Mapping):
        keys = cast("Mapping[object, object]", table)
        yield from (key for key in keys if isinstance(key, str))


def _names_of_rule(rule: object, spelling: Spelling) -> Iterator[str]:
    """Yield the mistakes in the names of a rule, or of the table of one."""
    if isinstance(rule, Rule):
        op, group = rule.op, rule.group
    elif isinstance(rule, Mapping):
        table = cast("Mapping[str, object]", rule)
        op, group = table.get("op"), table.get("group")
    else:
        return
    if isinstance(op, str) and (message := spelling.mistake(op)):
        yield f"op: {message}{OWN_PRIMITIVE}"
    if isinstance(group, str) and (message := unknown_group(group)):
        yield f"group: {message}"


def read_table(
    data: object,
    where: str,
    known: tuple[str, ...] = (),
    words: Collection[str] = (),
) -> PolicyFile:
    """Return the policy file held by ``data``.

    Args:
        data: Data from ``tomllib``.
        where: Path of the file, for messages.
        known: Op names of the policy it extends; a name close to one of them, and not
            qualified by a namespace, counts as a spelling mistake.
        words: All op names; names in rules are checked against them.

    Raises:
        PolicyError: Lists every mistake with its key.
    """
    file, mistakes = None, list[str]()
    try:
        file = PolicyFile.model_validate(data)
    except ValidationError as error:
        mistakes = [_mistake(e) for e in error.errors()]
    mistakes += _unknown_names(data, known, words)
    if file is not None and not mistakes:
        return file
    raise PolicyError(heading(f"policy {where}", mistakes), mistakes)


def heading(where: str, mistakes: Sequence[str]) -> str:
    """Return the first line of an error: the place and the number of mistakes."""
    return f"{where}: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}"


def read_rules(
    data: Sequence[object], where: str, words: Collection[str]
) -> list[Rule]:
    """Return ``data`` as rules; ``overrides=`` is read by it.

    Args:
        data: Rules, or their tables.
        where: The name of the list in messages.
        words: All op names; a name close to one of them, and not qualified by a
            namespace, counts as a spelling mistake.

    Raises:
        PolicyError: Lists every mistake of all rules with its key.
    """
    spelling, rules, mistakes = Spelling(words), list[Rule](), dict[str, list[str]]()
    for index, table in enumerate(data):
        try:
            rules.append(_read_rule(table, f"{where}[{index}]", spelling))
        except PolicyError as error:
            if len(data) == 1 or not error.mistakes:
                raise
            mistakes[f"{where}[{index}]"] = list(error.mistakes)
    if len(mistakes) == 1:
        ((place, lines),) = mistakes.items()
        raise PolicyError(heading(place, lines), lines)
    if mistakes or spelling.rest:
        lines = [f"{place}.{m}" for place, own in mistakes.items() for m in own]
        lines += [spelling.rest] * bool(spelling.rest)
        raise PolicyError(heading(where, lines), lines)
    return rules


def _read_rule(data: object, where: str, spelling: Spelling) -> Rule:
    """Return ``data`` as a rule.

    Raises:
        PolicyError: Lists every mistake with its key.
    """
    if not isinstance(data, (Rule, Mapping)):
        msg = (
            f"{where} is a {type(data).__name__}; want a table such as "
            f"{{'path': 'decoder.*', 'class': 'deny'}}"
        )
        raise PolicyError(msg)
    mistakes, rule = list[str](), data if isinstance(data, Rule) else None
    if rule is None:
        try:
            table = dict(cast("Mapping[Any, Any]", data))
            rule = RuleTable.model_validate(table).rule()
        except ValidationError as error:
            lines = (_mistake(e, "rules") for e in error.errors())
            mistakes = [line.removeprefix("rules.") for line in lines]
    mistakes += _names_of_rule(cast("object", data), spelling)
    if rule is None or mistakes:
        raise PolicyError(heading(where, mistakes), mistakes)
    return rule
