"""The text and the exported files of a program: torch.export, ONNX."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from amprewrite.errors import AmpError, CaptureError, UnsupportedError, warn
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.compat import settings, threads
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.ir.text import outline

FILES: Mapping[str, str] = {
    ".pt2": "torch.export.load",
    ".onnx": "ONNX Runtime",
}
"""Suffixes of the files that are written, and the reader of each."""

ONNX = ("onnx", "onnxscript")
"""Packages that torch writes ONNX with."""

ONNX_LOG = "torch.onnx._internal.exporter._registration"
"""Logger that reports each optional package of operators that is not installed."""

NO_BFLOAT16 = (
    "{path} computes in bfloat16, for which ONNX Runtime has no kernels on a CPU; run "
    "it with CUDAExecutionProvider, or convert with policy='fp16' for a CPU"
)
"""Source: the table of kernels of onnxruntime 1.32; on a CPU it has casts alone."""


def graph_text(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return ``model``, as it is or converted, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be captured by torch.export.
    """
    return outline(read(export_model(model, args, kwargs).module).graph)


def program_files() -> Mapping[str, str]:
    """Return the suffixes of the files that are written, and the reader of each."""
    return FILES


def save_program(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | Path,
) -> None:
    """Export ``model`` for these arguments and write it to ``path``.

    Args:
        model: A module, converted or not.
        args: Positional arguments.
        kwargs: Keyword arguments.
        path: A name that ends in ``.pt2`` or ``.onnx``.

    Raises:
        CaptureError: torch cannot export the model.
        UnsupportedError: The suffix is another one, or a package for it is missing.
    """
    suffix = Path(path).suffix
    if suffix not in FILES:
        msg = (
            f"{path}: torch models are written as {', '.join(FILES)}; want a name that "
            f"ends in one of these, or in .json for the plan"
        )
        raise UnsupportedError(msg)
    missing = [name for name in ONNX if find_spec(name) is None]
    if suffix == ".onnx" and missing:
        msg = (
            f"{path}: torch writes ONNX with packages that are not installed; "
            f"pip install {' '.join(missing)}"
        )
        raise UnsupportedError(msg)
    try:
        program = torch.export.export(model, args, dict(kwargs), strict=False)
        if suffix == ".onnx":
            _save_onnx(program, path)
        else:
            torch.export.save(program, path)
    except AmpError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        msg = f"the converted model cannot be exported: {reason}; save its plan instead"
        raise CaptureError(msg) from error


def _save_onnx(program: torch.export.ExportedProgram, path: str | Path) -> None:
    """Write a program as ONNX, and warn of bfloat16, which no CPU runs there."""
    with settings.quiet(), threads.silenced(ONNX_LOG):
        untyped: Any = torch.onnx
        untyped.export(program, dynamo=True, verbose=False).save(path)
    values = (node.meta.get("val") for node in program.graph.nodes)
    if any(_is_bfloat16(val) for val in values):
        warn(NO_BFLOAT16.format(path=path))


def _is_bfloat16(val: object) -> bool:
    return isinstance(val, torch.Tensor) and val.dtype == torch.bfloat16
