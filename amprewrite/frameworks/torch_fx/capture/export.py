"""Capture a model as an ATen-level graph with ``torch.export``.

One pass over the model under fake tensors: no weights are copied, nothing is run. A
model that export cannot capture raises :class:`CaptureError`; facts that export does
not keep are recorded (:class:`amprewrite.frameworks.torch_fx.capture.seen.Seen`).
"""

import inspect
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from inspect import Parameter
from itertools import chain
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import nn
from torch.fx import traceback
from torch.nn.parameter import is_lazy

from amprewrite.dtypes import Processor
from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.aten.dynamo_to_aten import cells_written_out
from amprewrite.frameworks.torch_fx.capture.program import Captured, open_program
from amprewrite.frameworks.torch_fx.capture.promotion_tracing import (
    PromotionRefused,
    promoting,
    take_out_promotions,
)
from amprewrite.frameworks.torch_fx.capture.seen import (
    ALL,
    Seen,
    watching,
    watching_attributes,
)
from amprewrite.frameworks.torch_fx.capture.stored_tensors import (
    StoredTensors,
    release,
)
from amprewrite.frameworks.torch_fx.compat import (
    module_hooks,
    pytrees,
    settings,
    threads,
    tracing,
    watchers,
)
from amprewrite.frameworks.torch_fx.untouched.surroundings import Surroundings
from amprewrite.runtime.collector import collector_paused
from amprewrite.user_code import raised_at

WITHOUT_ARGS = (
    "convert without args may work: it captures at the first call, with breaks where a "
    "graph cannot go on"
)
"""Advice if export fails, and no other way was tried."""


def model_device(model: torch.nn.Module) -> str:
    """Return the device type of the model's parameters and buffers.

    Raises:
        CaptureError: They are on several devices.
    """
    tensors = (*model.parameters(), *model.buffers())
    devices = sorted({str(t.device) for t in tensors})
    kinds = sorted({t.device.type for t in tensors if t.device.type != "meta"})
    if len(devices) > 1:
        msg = (
            f"model has tensors on {', '.join(devices)}; want one device; convert the "
            f"parts one by one, or move the model with .to(device)"
        )
        raise CaptureError(msg)
    return kinds[0] if kinds else "cpu"


@threads.one_at_a_time
def export_model(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any = None,
    processor: Processor | None = None,
    planned_for: str = "",
) -> Captured:
    """Return ``model`` captured for ``args`` and ``kwargs`` by torch.export.

    Gradients are enabled, so that the model's regions without them are recorded. A
    model that autograd refuses there (a write to a part of a ``chunk``, an ``out=``)
    runs only without gradients, and is captured so; unless it has autograd functions of
    its own, with a forward that runs without gradients in a model that has them.

    Args:
        model: The model.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        dynamic_shapes: As ``torch.export.export`` takes them.
        processor: Promotes operands of different dtypes.
        planned_for: Kind of the device on which the program will run; empty for that of
            the model.

    Raises:
        CaptureError: Names the first line of the user's code that cannot be captured.
        PromotionError: Operands have no common dtype; the line is named too.
        ComplexTruncationError: An imaginary part would be dropped there.
    """
    around = Surroundings([model])
    call = args, kwargs, dynamic_shapes
    trace = _Trace(model, call, processor, planned_for or model_device(model), around)
    watchers.failed(torch.__version__)  # their graphs are none of the model
    stored = StoredTensors()
    try:
        with stored.watching():
            captured = _with_gradients_or_without(trace)
    except BaseException as error:  # an interrupt leaves them too
        release(error)  # its calls hold tensors that the forward did not store
        stored.settle()
        around.restore()
        raise
    if any(map(tracing.has_captured_bodies, captured.module.modules())):
        captured.seen.attributes |= {ALL}
    captured.seen.stored = stored.settle(captured.module)
    if captured.seen.stored:
        around.restore()
    return captured


class _Trace(NamedTuple):
    """A model with all that a trace of it takes.

    Attributes:
        model: The model.
        call: Positional arguments, keyword arguments, and which extents vary.
        processor: Promotes operands of different dtypes.
        device: Kind of the device on which the program will run.
        around: The variables around the model.
    """

    model: torch.nn.Module
    call: tuple[tuple[Any, ...], Mapping[str, Any], Any]
    processor: Processor | None
    device: str
    around: Surroundings


def _with_gradients_or_without(trace: _Trace) -> Captured:
    seen = Seen()
    try:
        return _export(trace, seen)
    except CaptureError as error:
        if seen.functions or not _is_refused_by_autograd(error.__cause__):
            raise
        with suppress(CaptureError):  # then the first refusal says more
            return _export(trace, Seen(), gradients=False)
        raise


_AUTOGRAD = ("modified inplace", "in-place operation", "automatic differentiation")
"""Words in the errors by which autograd refuses an op in place or with ``out=``.

Source: torch/csrc/autograd/VariableTypeUtils.h and variable.cpp (torch 2.13).
"""


def _is_refused_by_autograd(cause: BaseException | None) -> bool:
    return type(cause) is RuntimeError and any(w in str(cause) for w in _AUTOGRAD)


@contextmanager
def _set_up(device: str, *, gradients: bool) -> Generator[None]:
    """Set torch up for a trace in this thread, in the context."""
    with (
        torch.inference_mode(mode=False),
        torch.set_grad_enabled(gradients),
        settings.keeping_saved_tensors(),
        settings.without_autocast(device),  # a region around is not the model's own
        threads.data_traced(),
        settings.slow_attention_path(),
        settings.plain_causal_hint(),
        settings.inference_without_gradients(),
        threads.export_apart(),
        threads.silent(),  # export's own advice about attributes it saw
        traceback.preserve_node_meta(),  # marks
    ):
        yield


@settings.compiled_later()
@collector_paused()
def _export(trace: _Trace, seen: Seen, *, gradients: bool = True) -> Captured:
    """Return ``model`` captured with gradients on or off; record its features.

    Raises:
        CaptureError: Names the first line of the user's code that cannot be captured.
        PromotionError: Operands have no common dtype; the line is named too.
        ComplexTruncationError: An imaginary part would be dropped there.
    """
    model, (args, kwargs, dynamic_shapes), processor, _, around = trace
    args, kwargs = pytrees.pytree.tree_map(_outside_inference, (args, dict(kwargs)))
    args, kwargs = pytrees.pytree.tree_map(_Apart(model), (args, dict(kwargs)))
    seen.hooks = sum(map(module_hooks.backward_hooks, model.modules()))
    device = model_device(model)
    settings.register_caches()
    with ExitStack() as stack:
        stack.enter_context(_set_up(device, gradients=gradients))
        stack.enter_context(settings.unmarked((args, dict(kwargs))))
        stack.enter_context(cells_written_out(trace.device))
        named = keywords_named(model, args, kwargs, dynamic_shapes)
        dynamic_shapes = stack.enter_context(named)
        stack.enter_context(watching(seen))
        stack.enter_context(watching_attributes(model, seen, around))
        stack.enter_context(promoting(processor))
        stack.enter_context(settings.distinct_casts())  # after promotion has cast
        stack.enter_context(settings.regions_opened())
        try:
            program = torch.export.export(
                model, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
            )
        except PromotionRefused as refused:
            raise refused.reason_at(offending_line(refused)) from None
        except Exception as error:
            raise _capture_error(model, error) from error
    if tracing.uses_transforms(program.graph_module):
        msg = (
            "torch.export leaves function transforms (vmap, grad) in the graph; want "
            "ops on the whole batch in their place"
        )
        raise CaptureError(msg)
    module = open_program(program)
    take_out_promotions(module)
    how = "captured by torch.export"
    return Captured(module, how if gradients else f"{how} without gradients", seen)


def _outside_inference(value: Any) -> Any:
    """Return a tensor argument as one that autograd may record; others unchanged."""
    if not _is_tensor(value) or not value.is_inference():
        return value
    with torch.inference_mode(mode=False):
        return value.clone()


class _Apart:
    """Copies tensors that are given twice or are the model's: one input for export.

    The program of ``(x, x)`` would read its first argument alone, and that of a buffer
    would read the buffer; other calls give other tensors.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Take note of the tensors that the parts of ``model`` hold."""
        held = chain.from_iterable(
            (*part.parameters(recurse=False), *part.buffers(recurse=False))
            for part in model.modules()
        )
        plain = chain.from_iterable(vars(part).values() for part in model.modules())
        self._met = {id(value) for value in chain(held, plain) if _is_tensor(value)}

    def __call__(self, value: Any) -> Any:
        """Return a tensor that was not met before; others unchanged."""
        if not _is_tensor(value):
            return value
        if id(value) in self._met:
            made = value.detach().clone()
            return made.requires_grad_() if value.requires_grad else made
        self._met.add(id(value))  # the arguments hold it until the end
        return value


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def _capture_error(model: torch.nn.Module, error: Exception) -> CaptureError:
    where = offending_line(error) or "the model"
    reason = str(error).strip().split("\n")[0]
    held = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    if any(t.is_inference() for t in held):
        reason = (
            "its tensors were made in torch.inference_mode(), where none has the "
            "record that a capture needs; make it outside and load its state_dict()"
        )
    return CaptureError(
        f"{type(model).__name__} cannot be captured by torch.export at {where}: "
        f"{reason}"
    )


def offending_line(error: BaseException) -> str:
    """Return the innermost line of the user as ``file:line``; empty without one."""
    line = raised_at(error)
    return f"{line[0]}:{line[1]}" if line else ""


@contextmanager
def keywords_named(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any
) -> Generator[Any]:
    """Give ``model.forward`` a parameter for each keyword of a call, in the context.

    Args:
        model: The model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        shapes: ``dynamic_shapes`` for the model's own signature.

    Yields:
        ``dynamic_shapes`` for the signature in the context.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    try:
        bound = signature.bind(*args, **kwargs).arguments
        extended = _extended(signature, bound)
    except (TypeError, ValueError):  # a call that fails, or a keyword such as "a b"
        yield shapes
        return
    if extended is signature:
        yield shapes
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    untyped: Any = called
    untyped.__signature__ = extended
    own = vars(model)  # other threads call the same forward by it
    before = {"forward": own["forward"]} if "forward" in own else {}
    own["forward"] = called
    try:
        yield _spread(shapes, [*bound])
    finally:
        own.pop("forward", None)
        own.update(before)


def _extended(
    signature: inspect.Signature, bound: Mapping[str, Any]
) -> inspect.Signature:
    """Return a signature with a parameter for each keyword that reaches ``**kwargs``.

    Raises:
        ValueError: A keyword is not a name, or another parameter has that name.
    """
    formals = [*signature.parameters.values()]
    rest = formals[-1] if formals else None
    if rest is None or rest.kind is not Parameter.VAR_KEYWORD or rest.name not in bound:
        return signature
    formals[-1:-1] = [Parameter(n, Parameter.KEYWORD_ONLY) for n in bound[rest.name]]
    return signature.replace(parameters=formals)


def _spread(shapes: Any, names: list[str]) -> Any:
    """Return ``dynamic_shapes`` with those in ``**kwargs`` beside the others.

    Args:
        shapes: As torch.export takes it: by the names of parameters, or in their order.
        names: The parameters that have arguments; the last one is ``**kwargs``.
    """
    wish = _as_dict(shapes)
    if pytrees.is_sequence(shapes) and len(shapes) == len(names):
        wish = dict(zip(names, shapes, strict=True))
    inside = _as_dict(wish.pop(names[-1], None))
    return wish | inside if inside else shapes


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a copy of a mapping; an empty dict for anything else."""
    if not isinstance(value, Mapping):
        return {}
    return dict(cast("Mapping[str, Any]", value))
