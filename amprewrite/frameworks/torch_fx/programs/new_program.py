"""Capture one more program of a converted model."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module import distributed
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.plain.plain_class import plain_class
from amprewrite.frameworks.torch_fx.plain.plain_model import named_tensors, plain_of
from amprewrite.frameworks.torch_fx.plain.written import share_attributes
from amprewrite.frameworks.torch_fx.programs.extents import Extents
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
