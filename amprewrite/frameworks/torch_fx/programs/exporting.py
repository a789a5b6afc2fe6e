"""Capture one more program of a converted model while ``torch.export`` traces it.

The tensors of the model, and those of the call, are fake ones then. A capture beside
the export has the tensors that they were made from.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from amprewrite.errors import (
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from amprewrite.frameworks.torch_fx.compat import tensor_internals, threads
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.signature import TRACED_OTHERWISE
from amprewrite.frameworks.torch_fx.plain.plain_model import named_tensors
from amprewrite.frameworks.torch_fx.programs.extents import TracedExtents
from amprewrite.frameworks.torch_fx.programs.new_program import Asker, new_program

NO_TENSORS = (
    "no program was captured for this call, and none can be while the model is traced "
    "with tensors without values; call it once with these arguments, in this mode, "
    "before torch.export.export"
)
"""Message about tensors of a tracer that were not made from those of the model."""

STRICT = (
    "no program was captured for this call, and none can be while dynamo traces the "
    "model; export with strict=False, or convert with args of this call"
)
"""Message about an export by dynamo."""


def program_to_export(
    asker: Asker, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ConvertedModule:
    """Return a new program for a call that ``torch.export`` traces.

    Args:
        asker: The converted model that is traced.
        args: Positional arguments of the tracer.
        kwargs: Keyword arguments of the tracer.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        NotCapturedError: The tensors of the tracer are not made from the model's; or a
            tolerance would have to be measured on arguments without values.
        PlanMismatchError: The program is for fewer extents than the export.
        UnsupportedError: Dynamo traces; or the model is in a mode that it was not
            converted for.
    """
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError(STRICT)
    (examples, named), stand_ins = _examples((args, dict(kwargs)))
    asker = replace(
        asker,
        extents=TracedExtents(asker.owner, args, kwargs),
        exported=True,
        stand_ins=stand_ins,
    )
    with _sources_in_place(asker.shared.root()):
        program = threads.beside_export(lambda: new_program(asker, examples, named))
    if not program.takes_traced(args, kwargs):
        raise PlanMismatchError(TRACED_OTHERWISE)
    return program


@contextmanager
def _sources_in_place(model: nn.Module) -> Generator[None]:
    """Put the tensors of a model back in place of the fake ones of a tracer.

    Raises:
        NotCapturedError: One of them is not known.
    """
    before = [(kept, name, held) for kept, name, held in named_tensors(model)]
    sources = [tensor_internals.source_of(held) for _, _, held in before]
    if any(source is None for source in sources):
        raise NotCapturedError(NO_TENSORS)
    try:
        for (kept, name, _), source in zip(before, sources, strict=True):
            kept[name] = source
        yield
    finally:
        for kept, name, held in before:
            kept[name] = held


def _examples(given: Any) -> tuple[Any, bool]:
    """Return arguments with the tensors that fake ones were made from.

    A tensor that the tracer computed has a stand-in; the second result is whether there
    is one.
    """
    leaves, structure = pytree.tree_flatten(given)
    stand_ins = False
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            source = tensor_internals.source_of(leaf)
            stand_ins = stand_ins or source is None
            leaves[number] = (
                tensor_internals.stand_in(leaf) if source is None else source
            )
    return pytree.tree_unflatten(leaves, structure), stand_ins
