"""Plan within a tolerance: sensitivity by autograd, candidates measured as they run."""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.base import Array, Budget, Call, Request, Run
from amprewrite.frameworks.torch_fx._compat import pytree
from amprewrite.frameworks.torch_fx.capture import Captured
from amprewrite.frameworks.torch_fx.dtypes import torch_dtype
from amprewrite.frameworks.torch_fx.read import Reading
from amprewrite.frameworks.torch_fx.runner import Runner, devices_of, full_float32
from amprewrite.frameworks.torch_fx.sensitivity import measure_sensitivity
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measurements

RANDOM = (
    "the model draws random numbers, and low kernels may draw others: its error was "
    "predicted, not measured; call eval() to have it measured"
)
"""Warning of a plan whose program was not measured."""


@dataclass(frozen=True)
class Norms:
    """How the errors of several outputs make one number.

    Attributes:
        factors: Factor on the L2 error of each output that counts, by path.
        jointly: Whether errors are added as squares; else the largest counts.
        target: Bound on that number.
    """

    factors: Mapping[str, float]
    jointly: bool
    target: float

    def error(self, found: Run, reference: Run) -> float:
        """Return the number for one run; infinite where an output is not finite."""
        errors = [
            factor * _norm(found.outputs[path] - reference.outputs[path])
            for path, factor in self.factors.items()
        ]
        if not np.isfinite(errors).all():
            return inf
        return sqrt(sum(e * e for e in errors)) if self.jointly else max(errors)


def plan_by_tolerance(
    reading: Reading,
    root: nn.Module,
    request: Request,
    captured: Captured,
    build: Callable[[Captured, Plan], nn.Module],
    *,
    training: bool,
) -> Plan:
    """Return the cheapest plan found that keeps the tolerance of ``request``.

    Args:
        reading: The captured program.
        root: The model.
        request: What the user asked for, a budget among it.
        captured: What was read.
        build: Gives the module that runs a captured program by a plan; the program
            is rewritten.
        training: Whether parameters keep their dtype.

    Raises:
        ToleranceError: No plan keeps it, or the model is not finite as it is.
        UnsupportedError: An op cannot be differentiated, or no output is a float.
    """
    budget = request.budget
    assert budget is not None
    probes = budget.probes(reading.graph, training=training)
    call = Call(request.args or (), dict(request.kwargs or {}))
    runner = Runner(call, devices_of(root, call))
    with full_float32(runner.devices):
        reference = runner.run(root, root)
        norms = _norms(budget, reference, lambda: _autocast(root, runner, probes.low))
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


def _norms(budget: Budget, reference: Run, autocast: Callable[[], Run]) -> Norms:
    """Return how errors are measured, and what they are bounded by."""
    sizes = {path: _norm(array) for path, array in reference.outputs.items()}
    tolerance = budget.tolerance
    if isinstance(tolerance, Mapping):
        return _separate(tolerance, sizes)
    total = sqrt(sum(size * size for size in sizes.values()))
    if total == 0.0:  # no float output, or zeros alone: said where it runs
        total = 1.0
    # One that is not finite has no size; the run under autograd names its op.
    factors = dict.fromkeys(sizes, 1.0 / total if np.isfinite(total) else 1.0)
    if not isinstance(tolerance, str):
        return Norms(factors, jointly=True, target=tolerance)
    target = Norms(factors, jointly=True, target=0.0).error(autocast(), reference)
    if not 0.0 < target < inf:
        msg = (
            f"tolerance='autocast': the error of torch.autocast on these arguments is "
            f"{target:.3g}, which bounds nothing; pass a number such as 1e-3"
        )
        raise ToleranceError(msg)
    return Norms(factors, jointly=True, target=target)


def _separate(bounds: Mapping[str, float], sizes: Mapping[str, float]) -> Norms:
    """Return norms in units of the smallest bound.

    Raises:
        ToleranceError: A bound is for what is no float output, or is zero.
    """
    strictest = min(bounds.values())
    factors: dict[str, float] = {}
    for path, bound in bounds.items():
        if path not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            msg = (
                f"tolerance[{path!r}]: there is no such float output; there are {known}"
            )
            raise ToleranceError(msg)
        if sizes[path] == 0.0:
            msg = (
                f"tolerance[{path!r}]: this output is zero, so that no error is "
                f"relative to it; leave it out, or give other arguments"
            )
            raise ToleranceError(msg)
        factors[path] = strictest / bound / sizes[path]
    return Norms(factors, jointly=False, target=strictest)


def _norm(array: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.linalg.norm(array))


def _autocast(root: nn.Module, runner: Runner, low: str) -> Run:
    device = "cuda" if runner.devices else "cpu"
    with torch.autocast(device, torch_dtype(low)):
        return runner.run(root, root)


def _copied(module: GraphModule) -> GraphModule:
    """Return a copy with graphs and bodies of its own, and the same tensors."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        tables = (vars(part), dict(part.named_parameters()), dict(part.named_buffers()))
        held = (value for table in tables for value in table.values())
        memo.update((id(t), t) for t in held if isinstance(t, torch.Tensor))
    with warnings.catch_warnings():
        # fx copies the structure of the arguments by a deprecated test of its own.
        warnings.simplefilter("ignore", FutureWarning)
        return copy.deepcopy(module, memo)


def refuse_lazy(cause: str) -> UnsupportedError:
    """Return the error of a model that is not captured as one graph beforehand."""
    msg = (
        f"tolerance needs the model as one graph, with arguments to measure it on, "
        f"and it could not be had: {cause}; leave tolerance=None"
    )
    return UnsupportedError(msg)
