"""Capture by dynamo when the model is called: several graphs, with breaks between."""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from amprewrite.errors import AmpError, CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.backend import Backend
from amprewrite.frameworks.torch_fx.capture.warmup import (
    copies,
    try_run,
)
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.lazy_runner import lazy_runner
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule, Use, run_later
from amprewrite.frameworks.torch_fx.probes.tolerance import refuse_lazy
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.plan import Plan


def dynamo(conversion: Conversion, cause: CaptureError | None) -> LazyModule:
    """Return a module that dynamo captures at its first call.

    Args:
        conversion: The model and the request.
        cause: The reason for which export passed the model on; the module is then
            called once on the arguments, so that it has a plan. None without one.

    Raises:
        CaptureError: The model itself, or dynamo, fails on the arguments; the request
            needs the model as one graph; or forward draws from a ``random.Random``.
        UnsupportedError: A tolerance is requested, which needs one graph too; or the
            model holds something that cannot be copied.
    """
    if cause is not None:
        return _called_once(conversion, cause)
    model, use = run_later(conversion.root, trains=conversion.trains)
    return _lazy(model, conversion.request, "", use)


def _called_once(conversion: Conversion, cause: CaptureError) -> LazyModule:
    refuse_several_graphs(conversion, cause)
    if conversion.owned:  # by a converted model, which is being called
        use = Use(trained=conversion.trains)
        return _lazy(
            conversion.root, conversion.request, str(cause), use, conversion.path
        )
    args, kwargs = conversion.args, conversion.kwargs
    model, use = run_later(conversion.root, trains=conversion.trains)
    lazy = _lazy(model, conversion.request, str(cause), use)
    try:
        if conversion.trains and torch.is_grad_enabled():
            with undisturbed(model, hooks=False):
                lazy(*copies(args), **copies(dict(kwargs)))
        else:
            try_run(lazy, model, args, kwargs)
    except AmpError:  # its message is complete
        raise
    except Exception as error:
        msg = f"{cause}; dynamo cannot capture it either: {str(error).strip()[:500]}"
        raise CaptureError(msg) from error
    return lazy


def refuse_several_graphs(conversion: Conversion, cause: CaptureError) -> None:
    """Refuse to replace export if the request needs the model as one graph.

    Raises:
        CaptureError: A plan is applied, or operands are promoted; or the model is a
            program already.
        UnsupportedError: The request has a tolerance.
    """
    request = conversion.request
    if request.plan is not None:
        raise CaptureError(f"{cause}; plan= needs one graph for the model") from cause
    if not isinstance(conversion.model, nn.Module) or request.processor is not None:
        raise cause
    if request.budget is not None:
        raise refuse_lazy(str(cause)) from cause


def _lazy(
    model: nn.Module, request: Request, reason: str, use: Use, part: str = ""
) -> LazyModule:
    plans = list[Plan]()
    compiled = request.compile or request.target == "compiled"
    backend = Backend(
        planner=request.planner,
        target="compiled" if compiled else "eager",
        plans=plans,
        reason=reason,
        reports=True,
        part=part,
        lowers=request.lowering,
        recompute=request.recompute,
        training=lambda: use.trained,  # not the model: torch keeps backends for ever
    )
    again = partial(_lazy, request=request, reason=reason, use=replace(use), part=part)
    return LazyModule(model, lazy_runner(model, backend), plans, again, use)
