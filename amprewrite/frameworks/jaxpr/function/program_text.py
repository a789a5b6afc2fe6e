"""The text of a program graph; programs of JAX are not saved to files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amprewrite.errors import UnsupportedError
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


def save_program(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: str | Path
) -> None:
    """Raise: JAX functions are exported by JAX itself.

    Raises:
        UnsupportedError: Always.
    """
    del model, args, kwargs
    msg = (
        f"{path}: a converted JAX function is no file for torch; write its plan "
        f"(a name that ends in .json), or use jax.export.export(jax.jit(converted))"
    )
    raise UnsupportedError(msg)
