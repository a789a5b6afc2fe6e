"""Read a plan from JSON data, or refuse it with a list of all mistakes.

Importing this module loads pydantic, so that it is imported where a plan is read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from amprewrite.errors import PlanMismatchError
from amprewrite.plan.file import ADDED, FORMAT, MAX_DEPTH, mistakes_head

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Found = TypeVar("Found", bound="DataclassInstance")


def read_table(kind: type[Found], data: object, where: str) -> Found:
    """Return the plan in the data ``data``.

    Every field must be there and of its type, and no other; those in
    :data:`amprewrite.plan.file.ADDED` may be missing.

    Args:
        kind: The class of plans.
        data: The table that :func:`save_table` wrote.
        where: Origin of the data, for messages.

    Raises:
        PlanMismatchError: Lists the mistakes, each with its place.
    """
    table = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    if table.get("format") != FORMAT or isinstance(table["format"], (bool, float)):
        found = f"format {table['format']!r:.40}" if "format" in table else "no format"
        msg = (
            f"{where}: is no plan of format {FORMAT} (found {found}); make it anew "
            f"with amprewrite.inspect and Plan.save, for another format does not hold "
            f"all that decides"
        )
        raise PlanMismatchError(msg)
    parts = {key: part for key, part in table.items() if key != "format"}
    mistakes = list(_too_deep(parts))
    if not mistakes:
        found, mistakes = _validated(kind, parts)
        if found is not None:
            mistakes = list(_other_keys(parts, found))
            if not mistakes:
                return found
    raise PlanMismatchError(f"{where}: {mistakes_head(mistakes)}", mistakes)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _validated(
    kind: type[Found], parts: Mapping[str, object]
) -> tuple[Found | None, list[str]]:
    try:
        return _adapter(kind).validate_json(json.dumps(parts), strict=True), []
    except ValidationError as error:
        return None, [
            f"{_place(e['loc'])}{_words(e['type'], e['msg'], e['input'])}"
            for e in error.errors(include_url=False)
        ]
    except (TypeError, ValueError) as error:  # given in memory: no JSON data
        return None, [f"is no JSON data ({error})"]


def _place(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location)
    return f"{text.removeprefix('.')}: " if text else ""


def _words(kind: str, message: str, found: object) -> str:
    match kind:
        case "missing":
            return "missing"
        case "unexpected_keyword_argument":
            return "unknown field"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return f"found {found!r:.60}; {message[:1].lower()}{message[1:]}"


def _too_deep(found: object, depth: int = 1) -> Iterator[str]:
    if depth > MAX_DEPTH:
        yield f"is nested deeper than {MAX_DEPTH}"
        return
    held: Any = found
    for part in held.values() if isinstance(found, dict) else held:
        if isinstance(part, (dict, list, tuple)):
            problem = next(_too_deep(cast("object", part), depth + 1), None)
            if problem:
                yield problem
                return


def _other_keys(found: object, want: object, place: str = "") -> Iterator[str]:
    """Yield a line for each missing and each unknown field of a file.

    Args:
        found: The data.
        want: The result of reading it: an object with fields, or a sequence of such.
        place: Path of the data in the file, with a dot at its end.
    """
    if is_dataclass(want) and isinstance(found, dict):
        table = cast("dict[str, object]", found)
        names = [field.name for field in fields(want)]
        later = ADDED.get(type(want).__name__, frozenset[str]())
        needed = (name for name in names if name not in later)
        yield from (f"{place}{name}: missing" for name in needed if name not in table)
        yield from (f"{place}{key}: unknown field" for key in table if key not in names)
        for key in (name for name in names if name in table):
            yield from _other_keys(table[key], getattr(want, key), f"{place}{key}.")
    elif isinstance(want, tuple) and isinstance(found, (list, tuple)):
        rows = zip(
            cast("list[object]", found),
            cast("tuple[object, ...]", want),
            strict=False,
        )
        for index, (one, other) in enumerate(rows):
            yield from _other_keys(one, other, f"{place.removesuffix('.')}[{index}].")
