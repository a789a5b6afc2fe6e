"""Plan within a tolerance: sensitivities, measurements and timings of candidates."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.execute.sensitivity import FAILURES, no_gradients
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.aten.ops import named_tensors, torch_dtype
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.compat import module_parts, threads
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.probes.runner import (
    Runner,
    check_values,
    devices_of,
    full_float32,
)
from amprewrite.frameworks.torch_fx.probes.sensitivity import measure_sensitivity
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.measure.runs import Array, Call, Run
from amprewrite.measure.timing import raced
from amprewrite.measure.tolerance import plan_within, without_eight_bits
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity

SECONDS = 2.0
"""Approximate limit of the timing of all candidates, beside five rounds of each."""


def seconds_of(
    models: Mapping[str, nn.Module], runner: Runner, *, training: bool
) -> dict[str, float]:
    """Return the median time of each model on the arguments of a runner.

    A training step is the forward pass and the gradients of all parameters for the sum
    of the float outputs. The models and the random state are restored afterwards.

    Args:
        models: The models, by name.
        runner: The arguments, and the devices that are waited for.
        training: Whether to time training steps.
    """
    runner = replace(runner, call=replace(runner.call, gradients=training))
    with undisturbed(*models.values(), watched=False) as before:
        runs = {name: _step(model, runner) for name, model in models.items()}
        with before.writes.watching(), torch.set_grad_enabled(training):
            for run in runs.values():
                run()  # what it writes to is known from then on, and none is watched

        def wait(_: object) -> None:
            for device in runner.devices:
                torch.cuda.synchronize(device)

        with torch.set_grad_enabled(training):
            return raced(runs, wait, SECONDS)


def _step(model: nn.Module, runner: Runner) -> Callable[[], object]:
    once = runner.arguments({})
    leaves = pytree.tree_leaves((runner.call.args, dict(runner.call.kwargs)))
    plain = (torch.Tensor, int, float, str, type(None))
    reused = all(isinstance(leaf, plain) for leaf in leaves)
    held = [p for p in model.parameters() if p.requires_grad]

    def step() -> object:
        # A cache among the arguments would grow from call to call.
        args, kwargs = once if reused else runner.arguments({})
        found = model(*args, **kwargs)
        if not (runner.call.gradients and held):
            return found
        floats = (t for t in dict(named_tensors(found)).values() if t.requires_grad)
        losses = [tensor.sum(dtype=torch.float32) for tensor in floats]
        if not losses:
            return found
        loss: Any = torch.stack(losses).sum()
        return torch.autograd.grad(loss, held, allow_unused=True)

    return step


RANDOM = (
    "the model draws random numbers, and low kernels may draw others: its error was "
    "predicted, not measured; call eval() to have it measured"
)
"""Warning of a plan for a program that was not measured."""

RANDOM_GRADIENTS = (
    "the model draws random numbers, and low kernels may draw others: its error was "
    "predicted, not measured, and that of its gradients is not bounded; call eval() "
    "and pass training=True to have both measured"
)
"""The same for a program of which gradients would be bounded."""


@dataclass(frozen=True)
class Builders:
    """Functions that build the module of a captured program by a plan.

    The program is rewritten in place.

    Attributes:
        measured: Builds one of which the numbers count.
        timed: Builds one that runs as the converted model will: lowered, compiled.
    """

    measured: Callable[[Captured, Plan], nn.Module]
    timed: Callable[[Captured, Plan], nn.Module]


def plan_by_tolerance(
    reading: Reading,
    root: nn.Module,
    request: Request,
    captured: Captured,
    builders: Builders,
    *,
    training: bool,
) -> Plan:
    """Return the cheapest plan found within the tolerance of ``request``.

    Args:
        reading: The captured program.
        root: The model.
        request: The request, with a budget.
        captured: The capture of the program.
        builders: Build the modules that run the captured program by a plan.
        training: Whether parameters keep their dtype.

    Raises:
        ToleranceError: No plan is within it, the model's outputs are not finite, or it
            does not run under the autocast that sets the bound.
        UnsupportedError: An op cannot be differentiated, no output is a float, or
            the model or its arguments have no values.
    """
    budget = request.budget
    assert budget is not None
    derived = training and budget.bounds_gradients
    kwargs = dict(request.kwargs or {})
    call = Call(request.args or (), kwargs, gradients=derived)
    check_values("tolerance", root, call)
    runner = Runner(call, devices_of(root, call))
    subject = _Subject(reading, root, runner, captured, builders, training)
    plan, _ = plan_within(budget, subject)
    if runner.random:
        plan = plan.with_warnings(RANDOM_GRADIENTS if derived else RANDOM)
    return plan


@dataclass
class _Subject:
    """Program of a model on the arguments of a call, to be planned.

    Attributes:
        reading: The captured program.
        root: The model.
        runner: Runs both.
        capture: The capture of the program.
        builders: Build the modules that run the captured program by a plan.
        trains: Whether parameters keep their dtype.
    """

    reading: Reading
    root: nn.Module
    runner: Runner
    capture: Captured
    builders: Builders
    trains: bool
    baseline_name: str = "torch.autocast"

    def __post_init__(self) -> None:
        self.graph, self.captured = self.reading.graph, self.capture.how
        self.differentiates = self.runner.call.gradients

    @property
    def is_random(self) -> bool:
        return self.runner.random

    def reference(self, _: Probes) -> Run:
        with full_float32(self.runner.devices):
            try:
                return self.runner.run(self.root, self.root)
            except FAILURES as error:
                if not self.differentiates:
                    raise
                alone = replace(self.runner.call, gradients=False)
                replace(self.runner, call=alone).run(self.root, self.root)
                cure = "pass training=False"  # forward it runs
                raise no_gradients(error, "model", cure) from error

    def baseline(self, probes: Probes) -> Run:
        with full_float32(self.runner.devices):
            return _autocast(self.root, self.runner, probes.low)

    def sensitivity(self, probes: Probes, factors: Mapping[str, float]) -> Sensitivity:
        inputs = pytree.tree_leaves(self.runner.arguments({}))
        isolated = self.runner.isolated(self.root, program=self.reading.module)
        with full_float32(self.runner.devices), isolated:
            return measure_sensitivity(self.reading, probes, inputs, lambda _: factors)

    def run(self, plan: Plan) -> Run:
        converted = self.builders.measured(self._again(), plan)
        try:
            return self.runner.run(converted, converted)
        finally:
            _free(converted)

    def one_by_one(self, plan: Plan) -> Iterator[tuple[str, Mapping[str, Array]]]:
        for op in ("", *(d.op for d in plan.quantised)):
            yield op, self.run(without_eight_bits(plan, op)).gradients

    def seconds(self, plans: Mapping[str, Plan]) -> Mapping[str, float]:
        made = {n: self.builders.timed(self._again(), p) for n, p in plans.items()}
        try:
            return seconds_of(made, self.runner, training=self.trains)
        finally:
            for converted in made.values():
                _free(converted)

    def _again(self) -> Captured:
        return replace(self.capture, module=copied_program(self.capture.module))


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


def _free(converted: nn.Module) -> None:
    """Free the tensors of a candidate, which refers to itself by its graph.

    Without it they stay until the collector runs: half of the weights and more, after
    the conversion too.
    """
    graph = vars(converted).get("_graph_module", converted)
    for part in (*converted.modules(), *graph.modules()):
        module_parts.parameters(part).clear()
        module_parts.buffers(part).clear()


def copied_program(module: GraphModule) -> GraphModule:
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
