"""Find the program of a call, which may be inside of an export or a transform.

The tensors of the model, and those of the call, are fake ones while ``torch.export``
traces it, and wrapped ones in a transform of ``torch.func``. A capture beside the
export has the tensors that they were made from; one beside the transform has a sample
of each.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from amprewrite.errors import (
    AmpError,
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from amprewrite.frameworks.torch_fx.capture.named_weights import attribute_values
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    operators,
    tensor_internals,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.low_marks import mark_low
from amprewrite.frameworks.torch_fx.module.signature import TRACED_OTHERWISE
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE
from amprewrite.frameworks.torch_fx.plain.plain_model import Stored
from amprewrite.frameworks.torch_fx.plain.tree import scripted
from amprewrite.frameworks.torch_fx.programs.extents import TracedExtents
from amprewrite.frameworks.torch_fx.programs.new_program import (
    conversion_of,
    new_program,
)
from amprewrite.frameworks.torch_fx.programs.shared_state import Caller, SharedState

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
    caller: Caller, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ConvertedModule:
    """Return a new program for a call that ``torch.export`` traces.

    Args:
        caller: The programs of the converted model that is traced.
        owner: The converted model or part.
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
    call = conversion_of(caller, owner, examples, named)
    call = replace(call, exported=True, stand_ins=stand_ins)
    extents = TracedExtents(owner, args, kwargs)
    with module_parts.in_place(caller.shared.root(), _source):
        program = threads.beside_export(lambda: new_program(caller, call, extents))
    if not program.takes_traced(args, kwargs):
        raise PlanMismatchError(TRACED_OTHERWISE)
    return program


def captured_at_call(
    caller: Caller, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ConvertedModule:
    """Return a new program for a call, which may be inside of a transform.

    It is captured outside of the transform, for the shapes that the call has inside,
    and for parameters in place of the plain tensors of ``functional_call``.

    Args:
        caller: The programs of the converted model.
        owner: The converted model or part.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        CaptureError: The model cannot be captured for these arguments.
        TypeError: The arguments are not those of the model's forward.
        UnsupportedError: The model cannot be copied, was pickled, or is in a mode that
            it was not converted for.
    """
    root, low = caller.shared.root(), caller.shared.low
    call = conversion_of(caller, owner, args, kwargs)
    if not _is_lent(root):
        return new_program(caller, call)

    def sample(value: Any) -> Any:
        given = isinstance(value, torch.Tensor)
        return tensor_internals.sample_of(value) if given else value

    with operators.outside_transforms():
        examples, named = pytree.tree_map(sample, (args, dict(kwargs)))
        call = replace(call, lent=True).asking(args=examples, kwargs=named)
        with module_parts.in_place(root, partial(_stored, low)):
            return new_program(caller, call)


def exported_at_call(
    caller: Caller,
    owner: nn.Module,
    lazy: LazyModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> ConvertedModule:
    """Return a program by export in place of one of dynamo, which stays if it fails.

    At the first call for inference a model that was converted without args is exported,
    if that is faithful: then weights are stored low, as in a conversion with args.
    Dynamo needs full ones, with low copies beside them.

    Args:
        caller: The programs of the converted model.
        owner: The converted model or part.
        lazy: The program of dynamo, which was not called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        TypeError: The arguments are not those of the model's forward.
    """
    state = caller.shared
    if _keeps_weights(state, owner):
        return lazy
    state.programs.remove(lazy)
    state.mode, state.lazy = owner.training, True
    program: ConvertedModule = lazy
    try:
        program = captured_at_call(caller, owner, args, kwargs)
    except AmpError:  # which dynamo may not raise
        pass
    finally:
        if isinstance(program, LazyModule):
            state.programs.append(lazy)
            state.mode, state.lazy = None, False
    return lazy if isinstance(program, LazyModule) else program


def _keeps_weights(state: SharedState, owner: nn.Module) -> bool:
    """Return whether weights stay full: for gradients, or for others that read them.

    A container with a weight would have the full one beside the low one.
    """
    if state.trains or owner.training or _is_lent(owner) or scripted(owner):
        return True
    values = attribute_values(owner, apart=frozenset({STATE, "_flat_weights"}))
    if any(id(tensor) in values for tensor in (*owner.parameters(), *owner.buffers())):
        return True
    return torch.is_grad_enabled() and any(p.requires_grad for p in owner.parameters())


def _is_lent(root: nn.Module) -> bool:
    """Return whether a model has tensors for this call alone."""
    held: Any = [module_parts.parameters(part).values() for part in root.modules()]
    own = (nn.Parameter, type(None))
    return operators.in_transform() or not all(
        isinstance(one, own) for kept in held for one in kept
    )


def _stored(low: Stored, name: str, held: torch.Tensor, kind: type[Any]) -> Any:
    """Return a tensor of a model as one that can be captured, as the model stores it.

    Args:
        low: The tensors that are stored low.
        name: Name of the tensor.
        held: The tensor, which may be transformed, and no parameter in place of one.
        kind: ``nn.Parameter`` in place of a parameter, else ``torch.Tensor``.
    """
    if isinstance(held, kind) and not tensor_internals.is_transformed(held):
        return held
    found: Any = tensor_internals.sample_of(held)
    stored, full = low.get(name, (held.dtype, held.dtype))
    if held.dtype == full:
        found = found.to(stored)
    if kind is nn.Parameter:
        trains = found.is_floating_point() or found.is_complex()
        found = nn.Parameter(found.detach(), requires_grad=trains)
    if found.dtype != full:
        mark_low(found, full)
    return found


def _source(_: str, held: torch.Tensor, __: type[Any]) -> torch.Tensor:
    """Return the tensor that a tracer made a fake one from.

    Raises:
        NotCapturedError: It is not known.
    """
    found = tensor_internals.source_of(held)
    if found is None:
        raise NotCapturedError(NO_TENSORS)
    return found


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
