"""From a captured program to the converted module: read, plan, build."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.fx import GraphModule

from amprewrite.frameworks.base import Request, announce
from amprewrite.frameworks.torch_fx.build import build
from amprewrite.frameworks.torch_fx.capture.one_graph import capture_for
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.compat import private, threads
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.distributed import lent
from amprewrite.frameworks.torch_fx.module.original import keep_origin
from amprewrite.frameworks.torch_fx.module.overflow import overflows
from amprewrite.frameworks.torch_fx.planning import plan_for
from amprewrite.frameworks.torch_fx.rewrite.input_dtypes import read_runnable
from amprewrite.frameworks.torch_fx.subject import Subject
from amprewrite.plan.validation.fit import check_fits


def assemble(subject: Subject, captured: Captured) -> ConvertedModule:
    """Return the module that runs a captured program by its plan.

    Args:
        subject: The model and the request.
        captured: The program; it is rewritten in place.

    Raises:
        CaptureError: The model itself refuses the dtypes of its arguments.
        PlanMismatchError: The given plan was made for another program.
        ToleranceError: No plan is within the tolerance.
    """
    root, request, trains = subject.root, subject.request, subject.trains
    reading = read_runnable(captured, request, root)
    if request.plan is None:
        plan = plan_for(subject, captured, reading)
    else:
        plan = request.plan
        check_fits(reading.graph, plan, training=trains, mode=subject.mode)
    converted = build(root, reading, plan, shared=trains)
    keep_origin(converted, root, shared=trains)
    if request.budget is None and request.has_arguments:
        converted.note(*overflows(converted, root, subject.args, subject.kwargs))
    announce(converted.plan)
    if trains and not isinstance(root, GraphModule):
        converted.switch_by(partial(_in_mode, root, request))
    if request.compile:
        private.compile_in_place(converted)
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
            return assemble(Subject.of(root, wanted), capture_for(root, root, wanted))
    finally:
        for module, training in before:
            module.training = training
