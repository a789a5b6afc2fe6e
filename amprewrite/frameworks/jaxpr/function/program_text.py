"""The text of a program graph."""

from collections.abc import Mapping
from typing import Any

from amprewrite.frameworks.jaxpr.function.pure_function import subject_of
from amprewrite.frameworks.jaxpr.program.read import read
from amprewrite.ir.text import outline
from amprewrite.measure.runs import Call


def graph_text(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return ``model``, as it is or converted, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be traced.
    """
    return outline(read(subject_of(model, Call(args, kwargs)).shown(), {}))
