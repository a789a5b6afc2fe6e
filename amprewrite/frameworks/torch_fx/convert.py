"""Convert and inspect torch models: capture -> read -> passes -> write."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import AmpError, CaptureError, UnsupportedError
from amprewrite.frameworks.base import Request, announce, refuse_plan
from amprewrite.frameworks.torch_fx.backend import Backend, lazy_runner
from amprewrite.frameworks.torch_fx.capture.dynamic_shapes import (
    PER_SIGNATURE,
    refuse_mistake,
    refuse_unused,
)
from amprewrite.frameworks.torch_fx.capture.export import WITHOUT_ARGS, model_device
from amprewrite.frameworks.torch_fx.capture.on_call import late_runner
from amprewrite.frameworks.torch_fx.capture.one_graph import capture_for
from amprewrite.frameworks.torch_fx.capture.program import Captured, Model, is_program
from amprewrite.frameworks.torch_fx.capture.warmup import (
    copies,
    try_run,
    undisturbed,
    warm_up,
)
from amprewrite.frameworks.torch_fx.compat import private, threads
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.distributed import lent, refuse_wrapped
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule, Use, run_later
from amprewrite.frameworks.torch_fx.module.loss_scale_warning import watch
from amprewrite.frameworks.torch_fx.module.original import keep_origin, original
from amprewrite.frameworks.torch_fx.module.overflow import overflows
from amprewrite.frameworks.torch_fx.module.signature import signature_of
from amprewrite.frameworks.torch_fx.module.snapshot import own_tensors
from amprewrite.frameworks.torch_fx.module.state import (
    fold_copies,
    mirror_extras,
    mirror_state,
    stored_weights,
)
from amprewrite.frameworks.torch_fx.probes.tolerance import (
    plan_by_tolerance,
    refuse_lazy,
)
from amprewrite.frameworks.torch_fx.rewrite.apply_plan import rewrite
from amprewrite.frameworks.torch_fx.rewrite.input_dtypes import read_runnable
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.plan import Plan
from amprewrite.plan.validation.fit import check_fits

__all__ = ["Request", "assemble", "convert", "inspect", "original"]


@threads.one_at_a_time
def convert(model: Model, request: Request) -> nn.Module:
    """Return ``model`` rewritten; see :func:`amprewrite.convert`.

    Raises:
        CaptureError: The model cannot be captured.
        PlanMismatchError: ``request.plan`` was made for another program.
        UnsupportedError: The model is wrapped for several processes already.
    """
    converted = _converted(model, request)
    if request.low == "float16" and request.training is not False:
        watch(converted)
    return converted


def _converted(model: Model, request: Request) -> nn.Module:
    """Return ``model`` rewritten.

    Raises:
        CaptureError: The model cannot be captured.
        PlanMismatchError: ``request.plan`` was made for another program.
    """
    root = _root(model)
    refuse_wrapped(root)
    model_device(root)
    if not request.has_arguments and isinstance(model, nn.Module):
        refuse_plan(request)
        if request.dynamic_shapes is not None:
            refuse_unused(captured=False)
        run, use = run_later(model, trains=_trains(model, request))
        if request.processor:
            return _late(run, request, use)
        return _lazy(run, request, "", use)
    try:
        captured = capture_for(model, root, request)
    except CaptureError as error:
        return _captured_lazily(model, request, _not_shapes(model, request, error))
    reason = captured.seen.reason(training=_trains(root, request))
    if reason and isinstance(model, nn.Module):
        if request.dynamic_shapes is not None:
            reason = f"{reason}; {PER_SIGNATURE}"
        return _captured_lazily(model, request, CaptureError(reason))
    return assemble(root, captured, request)


@threads.one_at_a_time
def inspect(model: Model, request: Request) -> Plan:
    """Return the plan for ``model`` without converting it.

    Raises:
        CaptureError: The model cannot be captured by export.
        UnsupportedError: No arguments were given.
    """
    if isinstance(model, ConvertedModule):
        return model.plan
    if not request.has_arguments and isinstance(model, nn.Module):
        msg = "inspect needs args=, the arguments that the model is called with"
        raise UnsupportedError(msg)
    root = _root(model)
    refuse_wrapped(root)
    try:
        captured = capture_for(model, root, request)
    except CaptureError as error:
        found = _not_shapes(model, request, error)
        if request.processor is None and request.budget is None:
            found = CaptureError(f"{found}; {WITHOUT_ARGS}")
        raise found from error.__cause__
    return _plan(read_runnable(captured, request, root), captured, request, root)


def _not_shapes(model: Model, request: Request, error: CaptureError) -> CaptureError:
    """Return why the model could not be captured, for another reason than its shapes.

    Raises:
        CaptureError: ``request.dynamic_shapes`` is wrong for the model.
    """
    if request.dynamic_shapes is None or not isinstance(model, nn.Module):
        return error
    args, kwargs = request.args or (), request.kwargs or {}
    refuse_mistake(model, args, kwargs, request.dynamic_shapes, error)
    return CaptureError(f"{error}; {PER_SIGNATURE}")


def _trains(model: nn.Module, request: Request) -> bool:
    """Return whether parameters keep their dtype, to be trained."""
    return model.training if request.training is None else request.training


def _mode(model: nn.Module) -> Literal["", "train", "eval"]:
    """Return the mode of a model; a program has that in which it was captured."""
    return "" if is_program(model) else "train" if model.training else "eval"


def _root(model: Model) -> nn.Module:
    return model if isinstance(model, nn.Module) else model.module(check_guards=False)


def _plan(
    reading: Reading, captured: Captured, request: Request, root: nn.Module
) -> Plan:
    training = _trains(root, request)
    if request.budget is not None:
        candidate = partial(_built, root)
        plan = plan_by_tolerance(
            reading, root, request, captured, candidate, training=training
        )
    else:
        plan = request.planner(
            reading.graph, keep_parameter_dtype=training, captured=captured.how
        )
    plan = replace(plan, mode=_mode(root))
    device = request.device or model_device(root)
    return plan.with_warnings(*captured.notes, *_device_warnings(device, plan.low))


def _device_warnings(device: str, low: str) -> tuple[str, ...]:
    if low == "float16" and device == "cpu":
        msg = (
            "float16 on a CPU: most CPUs have no float16 matrix kernels, and it ran 4 "
            "times slower than float32 where measured; use bf16 there"
        )
        return (msg,)
    return ()


def assemble(root: nn.Module, captured: Captured, request: Request) -> ConvertedModule:
    """Return the module that runs a captured graph by its plan.

    Raises:
        PlanMismatchError: ``request.plan`` was made for another program.
    """
    reading = read_runnable(captured, request, root)
    trains = _trains(root, request)
    plan = request.plan or _plan(reading, captured, request, root)
    if request.plan is not None:
        check_fits(reading.graph, plan, training=trains, mode=_mode(root))
    converted = _rewritten(root, reading, plan, shared=trains)
    keep_origin(converted, root, shared=trains)
    if request.budget is None and request.has_arguments:
        args, kwargs = request.args or (), request.kwargs or {}
        converted.note(*overflows(converted, root, args, kwargs))
    announce(converted.plan)
    if trains and not isinstance(root, GraphModule):
        converted.switch_by(partial(_in_mode, root, request))
    if request.compile:
        private.compile_in_place(converted)
    return converted


def _built(root: nn.Module, captured: Captured, plan: Plan) -> ConvertedModule:
    """Return the module that runs a captured graph by a plan that is tried."""
    return _rewritten(root, read(captured.module), plan, shared=True)


def _rewritten(
    root: nn.Module, reading: Reading, plan: Plan, *, shared: bool
) -> ConvertedModule:
    """Rewrite what was read by ``plan`` and return the module that runs it.

    Args:
        root: The model.
        reading: Its program.
        plan: What is applied to it.
        shared: Whether tensors whose dtype stays are the model's own, not copies.
    """
    module = reading.module
    low = stored_weights(reading, plan)
    kept = low if shared else own_tensors(root, module, low)
    signature = signature_of(root, module)
    plan = rewrite(reading, plan)
    recipe = fold_copies(module)
    converted = ConvertedModule()
    mirror_state(converted, root, kept)
    mirror_extras(converted, module, kept)
    converted.install(module, plan, signature, training=root.training)
    converted.keep_copies(recipe)
    return converted


@threads.one_at_a_time
def _in_mode(
    root: nn.Module,
    request: Request,
    owner: nn.Module,
    mode: bool,  # noqa: FBT001  # a mode is a boolean in torch
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> ConvertedModule:
    """Return ``root`` captured in train or eval mode, with the tensors of ``owner``.

    Raises:
        CaptureError: It cannot be captured in that mode.
    """
    before = [(module, module.training) for module in root.modules()]
    root.train(mode)
    try:
        wanted = replace(request, args=args, kwargs=kwargs, plan=None, training=True)
        with lent(root, owner):
            return assemble(root, capture_for(root, root, wanted), wanted)
    finally:
        for module, training in before:
            module.training = training


def _late(model: nn.Module, request: Request, use: Use) -> LazyModule:
    """Capture by export at the first call; parameters may change between calls."""
    plans: list[Plan] = []
    trains = request.training is not False

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
        return convert(
            model, replace(request, args=args, kwargs=kwargs, training=trains)
        )

    run = late_runner(model, capture, plans, follows=trains)
    again = partial(_late, request=request, use=replace(use))
    return LazyModule(model, run, plans, again, use)


def _lazy(model: nn.Module, request: Request, reason: str, use: Use) -> LazyModule:
    plans: list[Plan] = []
    compiled = request.compile or request.target == "compiled"
    backend = Backend(
        planner=request.planner,
        target="compiled" if compiled else "eager",
        plans=plans,
        reason=reason,
        reports=True,
        training=lambda: use.trained,  # not the model: torch keeps backends for ever
    )
    again = partial(_lazy, request=request, reason=reason, use=replace(use))
    return LazyModule(model, lazy_runner(model, backend), plans, again, use)


def _captured_lazily(
    model: Model,
    request: Request,
    cause: CaptureError,
) -> LazyModule:
    """Take the other way, and run it once so that the plan is there.

    Raises:
        CaptureError: The model itself fails on these arguments, or dynamo does.
    """
    if request.plan is not None:
        raise CaptureError(f"{cause}; plan= needs one graph for the model") from cause
    if not isinstance(model, nn.Module) or request.processor is not None:
        raise cause
    if request.budget is not None:
        raise refuse_lazy(str(cause)) from cause
    args, kwargs = request.args or (), request.kwargs or {}
    warm_up(model, args, kwargs)
    trains = _trains(model, request) and torch.is_grad_enabled()
    model, use = run_later(model, trains=_trains(model, request))
    lazy = _lazy(model, request, str(cause), use)
    try:
        if trains:
            with undisturbed(model):
                lazy(*copies(args), **copies(dict(kwargs)))
        else:
            try_run(lazy, model, args, kwargs)
    except AmpError:  # says by itself what is wrong
        raise
    except Exception as error:
        msg = f"{cause}; dynamo cannot capture it either: {str(error).strip()[:500]}"
        raise CaptureError(msg) from error
    return lazy
