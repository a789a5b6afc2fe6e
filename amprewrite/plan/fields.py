"""Types of the fields of a plan, with what a file may hold in them."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from amprewrite.dtypes import FORMATS
from amprewrite.policy import OpClass

MAX_ITEMS = 1_000_000
"""Most decisions, casts or lines of a program: ten times the largest program that was
planned, so that a file cannot take all memory."""

MAX_TEXT = 100_000
"""Longest text of a field, in characters: a reason names a few ops."""

MAX_COUNT = 2**63
"""Largest count of bytes or elements: what fits into a machine word."""

FLOATS = tuple(name for name, found in FORMATS.items() if found.kind == "float")
"""Names of the floating dtypes."""

FOLDINGS = ("", "storage", "copy", "kernel", "dtype")
"""How a cast may be folded, see :class:`amprewrite.plan.Cast`."""


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def check(found: str) -> str:
        if found in words:
            return found
        near = get_close_matches(found, words, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(word or "''" for word in words)
        raise ValueError(f"found {found[:60]!r}; want {known}{hint}")

    return check


Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
"""Words for people, and names."""

ClassName = Annotated[str, AfterValidator(_one_of(tuple(map(str, OpClass))))]
"""Name of a class of ops."""

FloatName = Annotated[str, AfterValidator(_one_of(FLOATS))]
"""Name of a floating dtype."""

LowName = Annotated[str, AfterValidator(_one_of(("", *FLOATS)))]
"""Name of a floating dtype, or nothing."""

DtypeName = Annotated[str, AfterValidator(_one_of(tuple(FORMATS)))]
"""Name of a dtype that can be cast."""

AccumulatorName = Annotated[str, AfterValidator(_one_of(("", "operand", *FLOATS)))]
"""What the kernels of derivatives hand over."""

Folding = Annotated[str, AfterValidator(_one_of(FOLDINGS))]
"""How a cast is folded."""

Mode = Literal["", "train", "eval"]
Target = Literal["", "eager", "compiled"]
"""Mode of a torch model."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""Bytes, elements, iterations of a loop."""

Index = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""Position of an operand or output."""

Error = Annotated[float, Field(ge=0)]
"""A relative error."""

MANY = Field(max_length=MAX_ITEMS)
"""A sequence that a file may not make endless."""
