"""Plan within a tolerance: autograd sensitivities, and measurements of candidates."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.aten.dtypes import torch_dtype
from amprewrite.frameworks.torch_fx.capture.export import Captured
from amprewrite.frameworks.torch_fx.compat import threads
from amprewrite.frameworks.torch_fx.compat.private import pytree
from amprewrite.frameworks.torch_fx.probes.runner import (
    Runner,
    check_values,
    devices_of,
    full_float32,
)
from amprewrite.frameworks.torch_fx.probes.sensitivity import (
    FAILURES,
    measure_sensitivity,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.measure.norms import norms_of
from amprewrite.measure.runs import Call, Run
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measurements

RANDOM = (
    "the model draws random numbers, and low kernels may draw others: its error was "
    "predicted, not measured; call eval() to have it measured"
)
"""Warning of a plan for a program that was not measured."""


def plan_by_tolerance(
    reading: Reading,
    root: nn.Module,
    request: Request,
    captured: Captured,
    build: Callable[[Captured, Plan], nn.Module],
    *,
    training: bool,
) -> Plan:
    """Return the cheapest plan found within the tolerance of ``request``.

    Args:
        reading: The captured program.
        root: The model.
        request: The request, with a budget.
        captured: The capture of the program.
        build: Returns the module that runs a captured program by a plan; the program is
            rewritten.
        training: Whether parameters keep their dtype.

    Raises:
        ToleranceError: No plan is within it, the model's outputs are not finite, or it
            does not run under the autocast that sets the bound.
        UnsupportedError: An op cannot be differentiated, no output is a float, or
            the model or its arguments have no values.
    """
    budget = request.budget
    assert budget is not None
    probes = budget.probes(reading.graph, keep_parameter_dtype=training)
    call = Call(request.args or (), dict(request.kwargs or {}))
    check_values("tolerance", root, call)
    runner = Runner(call, devices_of(root, call))
    with full_float32(runner.devices):
        reference = runner.run(root, root)
        norms = norms_of(
            budget.tolerance,
            reference,
            lambda: _autocast(root, runner, probes.low),
            "torch.autocast",
        )
        inputs = pytree.tree_leaves(runner.arguments({}))
        with runner.isolated(root):
            sensitivity = measure_sensitivity(
                reading, probes, inputs, lambda _: norms.factors
            )

    def measure(plan: Plan) -> float | None:
        if runner.random:
            return None
        again = replace(captured, module=_copied(captured.module))
        converted = build(again, plan)
        return norms.error(runner.run(converted, converted), reference)

    plan = budget.plan(
        Measurements(
            graph=reading.graph,
            training=training,
            captured=captured.how,
            sensitivity=sensitivity,
            target=norms.target,
            measure=measure,
        )
    )
    return plan.with_warnings(RANDOM) if runner.random else plan


def _autocast(root: nn.Module, runner: Runner, low: str) -> Run:
    """Run a model under torch.autocast.

    Raises:
        ToleranceError: It fails there.
    """
    device = "cuda" if runner.devices else "cpu"
    try:
        with torch.autocast(device, torch_dtype(low)):
            return runner.run(root, root)
    except FAILURES as error:
        line = str(error).strip().partition("\n")[0]
        msg = (
            f"tolerance='autocast': the model does not run under torch.autocast in "
            f"{low}: {line}; pass a number such as 1e-3"
        )
        raise ToleranceError(msg) from error


def _copied(module: GraphModule) -> GraphModule:
    """Return a copy with graphs and bodies of its own, and the same tensors."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        tables = (vars(part), dict(part.named_parameters()), dict(part.named_buffers()))
        held = (value for table in tables for value in table.values())
        memo.update((id(t), t) for t in held if isinstance(t, torch.Tensor))
    # fx copies the structure of the arguments by a deprecated test of its own.
    with threads.silent(FutureWarning):
        return copy.deepcopy(module, memo)


def refuse_lazy(cause: str) -> UnsupportedError:
    """Return the error that a model was not captured as one graph beforehand."""
    msg = (
        f"tolerance needs the model as one graph, with arguments to measure it on, "
        f"and it could not be had: {cause}; leave tolerance=None"
    )
    return UnsupportedError(msg)
