"""Exported files of converted functions and modules: StableHLO, by ``jax.export``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax import export

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of

PLATFORMS = ("cpu", "cuda", "tpu")
"""Platforms that a file is lowered for; one of them runs it."""

FILES: Mapping[str, str] = {".stablehlo": "jax.export.deserialize"}
"""Suffixes of the files that are written, and the function that reads each."""


def program_files() -> Mapping[str, str]:
    """Return the suffixes of the files that are written, and their readers."""
    return FILES


def save_program(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: str | Path
) -> None:
    """Export ``model`` for these arguments and write it to ``path``.

    The file holds a serialised ``jax.export.Exported`` for CPU, CUDA and TPU. Weights
    that the model holds itself are in it; those that it is called with, as a function
    or a linen module is, are arguments.

    Args:
        model: A function or module, converted or not.
        args: Positional arguments; only their structure, shapes and dtypes matter.
        kwargs: Keyword arguments.
        path: A name that ends in ``.stablehlo``.

    Raises:
        CaptureError: JAX cannot export the model.
        UnsupportedError: The suffix is another one.
    """
    if Path(path).suffix not in FILES:
        msg = (
            f"{path}: JAX functions and modules are written as {', '.join(FILES)}, "
            f"which jax.export.deserialize reads; want such a name, or one that ends "
            f"in .json for the plan"
        )
        raise UnsupportedError(msg)
    adapter = adapter_of(model)
    call = adapter.call_of(model) if hasattr(adapter, "call_of") else model

    def run(*given: Any, **named: Any) -> Any:
        return call(*given, **named)

    try:
        exported = export.export(jax.jit(run), platforms=PLATFORMS)(*args, **kwargs)
        data = exported.serialize()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        msg = f"the converted model cannot be exported: {reason}; save its plan instead"
        raise CaptureError(msg) from error
    Path(path).write_bytes(data)
