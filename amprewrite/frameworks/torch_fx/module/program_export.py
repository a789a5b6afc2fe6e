"""The text and the exported file of a program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.ir.text import outline


def graph_text(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return ``model``, as it is or converted, as the text of a program graph.

    Raises:
        CaptureError: The model cannot be captured by torch.export.
    """
    return outline(read(export_model(model, args, kwargs).module).graph)


def save_program(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | Path,
) -> None:
    """Export ``model`` and write it to ``path``; ``torch.export.load`` reads it.

    Raises:
        CaptureError: The model cannot be captured by torch.export.
    """
    try:
        program = torch.export.export(model, args, dict(kwargs), strict=False)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        msg = f"the converted model cannot be exported: {reason}; save its plan instead"
        raise CaptureError(msg) from error
    torch.export.save(program, path)
