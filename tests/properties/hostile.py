"""Mutations of data and text that anybody may have written."""

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

Place = tuple[Any, Any]
"""A table or list, and a key in it."""

POOL: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    7,
    2**31,
    2**70,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "int32",
    "allow",
    "deny",
    "keep",
    "storage",
    "kernel",
    "output",
    "operand",
    "\0",
    "\ud800",
    "ﬀ\u202eẞ",
    "x" * 200_000,
    [],
    {},
    [[]],
    ["float32"],
    {"a": 1},
)
"""Values of every kind; the words are those that mean something somewhere."""


def nested(depth: int) -> Any:
    """Return a list in a list, and so on."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


def places(data: Any) -> Iterator[Place]:
    """Yield every place in ``data`` that holds something, at every depth."""
    keys = list(data) if isinstance(data, dict) else range(len(data))
    for key in keys:
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from places(data[key])


def mutated(data: Any, random: Random) -> Any:
    """Return a copy of ``data`` with one thing changed."""
    made = copy.deepcopy(data)
    found = list(places(made))
    holder, key = random.choice(found)
    way = random.randrange(6)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif way == 2:
        other, at = random.choice(found)
        holder[key] = copy.deepcopy(other[at])
    elif way == 3 and isinstance(holder, dict):
        holder[f"{key}2"] = holder[key]
    elif way == 4 and isinstance(holder, list) and len(holder) > 1:
        holder[key], holder[0] = holder[0], holder[key]
    else:
        holder[key] = random.choice([*POOL, nested(40)])
    return made


def scrambled(text: str, random: Random) -> str:
    """Return ``text`` with one line or one value changed."""
    lines = text.splitlines()
    at = random.randrange(len(lines))
    way = random.randrange(5)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif way == 2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif way == 3 and "=" in lines[at]:
        key = lines[at].partition("=")[0]
        lines[at] = f"{key}= {random.choice(VALUES)}"
    else:
        place = random.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:place] + random.choice(MARKS) + lines[at][place + 1 :]
    return "\n".join(lines) + "\n"


VALUES = (
    '""',
    '"deny"',
    '"bfloat16"',
    '"float8_e4m3fn"',
    '"int8"',
    '"banana"',
    "true",
    "1e400",
    "nan",
    "9" * 400,
    "[]",
    "{}",
    "[" * 60 + "]" * 60,
    '{ class = "deny" }',
    '{ class = "deny", why = 3 }',
    '"\\u0000"',
    '"' + "x" * 10_000 + '"',
    "1979-05-27",
)
"""Values of TOML of every kind."""

MARKS = ("", '"', "[", "]", "=", ".", "\0", "é", "\u202e", "#", "x", " ")
