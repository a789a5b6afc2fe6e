"""Capture one more program of a converted model, for a call.

The call may be inside of an export or a transform. The tensors of the model, and those
of the call, are fake ones while ``torch.export`` traces it, and wrapped ones in a
transform of ``torch.func``. A capture beside the export has the tensors that they were
made from; one beside the transform has a sample of each.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from amprewrite.errors import (
    AmpError,
    CaptureError,
    NotCapturedError,
    PlanMismatchError,
    UnsupportedError,
)
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.capture.named_weights import attribute_values
from amprewrite.frameworks.torch_fx.compat import (
    module_hooks,
    module_parts,
    operators,
    tensor_internals,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.low_marks import mark_low
from amprewrite.frameworks.torch_fx.module.signature import TRACED_OTHERWISE
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE, plain_class
from amprewrite.frameworks.torch_fx.plain.plain_model import (
    Stored,
    named_tensors,
    plain_of,
)
from amprewrite.frameworks.torch_fx.plain.tree import scripted
from amprewrite.frameworks.torch_fx.plain.written import share_attributes
from amprewrite.frameworks.torch_fx.programs.calls import Extents, TracedExtents
from amprewrite.frameworks.torch_fx.programs.linking import link
from amprewrite.frameworks.torch_fx.programs.part_hooks import hook_keys, new_hook
from amprewrite.frameworks.torch_fx.programs.shared_state import Caller, SharedState


def conversion_of(
    caller: Caller, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Conversion:
    """Return the conversion that a call of a converted model, or of a part, needs.

    Args:
        caller: The programs of the model.
        owner: The converted model or part.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        PlanMismatchError: The model was pickled with programs for other arguments.
        TypeError: The arguments are not those of the model's forward.
        UnsupportedError: The model was pickled, or is in a mode that it was not
            converted for.
    """
    shared = caller.shared
    shared.check_mode(owner.training)
    _check_arguments(owner, args, kwargs)
    if shared.capture is None:
        raise _no_capture(caller.others, args, kwargs)
    call = Conversion(owner, shared.capture.request, owned=True, path=caller.path)
    return call.asking(args=args, kwargs=dict(kwargs))


def new_program(
    caller: Caller, call: Conversion, extents: Extents | None = None
) -> ConvertedModule:
    """Return a new program of a converted model, or of a part of one.

    Args:
        caller: The programs of the model.
        call: The conversion of the converted model or part.
        extents: Record of the shapes; None for the one of the model.

    Raises:
        CaptureError: The model cannot be captured for these arguments.
        UnsupportedError: The model cannot be copied.
    """
    state, owner, others = caller.shared, call.root, caller.others
    changed = [] if caller.last is None else caller.last.gathered_otherwise()
    args, kwargs = distributed.inputs_as_captured((call.args, call.kwargs), changed)
    with distributed.read_as_captured(changed, copied=True):
        plain = _plain(state, owner, call.path)
        call = replace(
            call,
            model=plain,
            like=next((p.decided for p in others if p.is_like(args, kwargs)), None),
            first=not state.programs and not call.path,
            reason=new_hook(owner),
            varies=state.lazy and not call.exported,
        ).asking(
            args=args,
            kwargs=kwargs,
            dynamic_shapes=(extents or caller.extents).note(plain, args, kwargs),
            # Low copies beside full weights would be without their gradients.
            training=state.trains
            or state.mode is None
            or (call.lent and not state.low),
        )
        capture = state.capture
        assert capture is not None  # as the conversion has its request
        try:
            program = capture(call)
        except CaptureError as error:
            refuse_made_of_low(state, owner, error)
            raise
        stores = not (call.exported or call.lent)
        link(program, owner, state.programs, state.root(), stores=stores)
        if isinstance(program, LazyModule):
            share_attributes(program.model, owner)
            program.hooks = hook_keys(program.model)
    return program


def refuse_made_of_low(state: SharedState, owner: nn.Module, error: Exception) -> None:
    """Name a part with a parametrization, or a tensor, made of weights stored low.

    Args:
        state: State of the model.
        owner: The converted model or part.
        error: The error of the model.

    Raises:
        UnsupportedError: There is one, and the error is that the model fails.
    """
    if not state.low or not isinstance(error, CaptureError):
        return
    for path, part in module_parts.modules_by_path(owner):
        found = _made_of_low(state, path, part)
        if found:
            reason = str(error).partition(";")[0]  # what follows is advice
            msg = (
                f"part {path or '(all of it)'} has {found} of weights that are stored "
                f"low, and the model cannot be captured with it: {reason}; change "
                f"amprewrite.original(model) so, and convert that, or convert with "
                f"training=True, which keeps all weights"
            )
            raise UnsupportedError(msg) from error


def _made_of_low(state: SharedState, path: str, part: nn.Module) -> str:
    if parametrize.is_parametrized(part):
        return "a parametrization"
    dtypes = {low for low, _ in state.low.values()}
    for kept in (module_parts.parameters(part), module_parts.buffers(part)):
        for name, held in kept.items():
            known = f"{path}.{name}".lstrip(".") in state.low
            if held is not None and held.dtype in dtypes and not known:
                return f"{name} in {dtype_name(held.dtype)}, made"
    return ""


def _plain(state: SharedState, owner: nn.Module, path: str) -> nn.Module:
    """Return the plain form of ``owner``, to be captured.

    Raises:
        UnsupportedError: It cannot be copied.
    """
    model = state.model
    shared = model is not None and not path and have_same_tensors(model, owner)
    if state.refusal and model is not None and shared:
        return model.train(owner.training)  # which need not be copied
    state.refuse_copy()
    plain = plain_of(owner, shared=True)
    module_hooks.set_forward_hooks(plain, {} if path else state.hooks)
    return plain


def _no_capture(
    programs: Sequence[ConvertedModule],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Exception:
    """Return the error that a loaded model has no program for a call.

    Raises:
        PlanMismatchError: Says how the arguments differ from those of the capture.
        TypeError: As above.
    """
    for program in programs:
        program.refuse(args, kwargs)
    return UnsupportedError(
        "this module was pickled, with the programs that it had, and cannot capture "
        "another; its structure is not that of any of them; convert "
        "amprewrite.original(module) again"
    )


def _check_arguments(
    owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Check that a call has the arguments of the model's forward.

    Raises:
        TypeError: Names the argument that is missing, unexpected or given twice.
    """
    kind = plain_class(type(owner))
    forward = MethodType(kind.forward, owner)  # which a function may be around
    signature = inspect.signature(forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        where = f"{kind.__name__}.forward{signature}"
        msg = f"{where} was called with a wrong argument: {error}"
        raise TypeError(msg) from None


def have_same_tensors(model: Any, other: nn.Module) -> bool:
    """Return whether two models hold the same tensors under the same names."""
    ours, theirs = list(named_tensors(model)), list(named_tensors(other))
    same = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(
        one[1] == two[1] and one[2] is two[2] for one, two in same
    )


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
