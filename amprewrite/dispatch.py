"""Which framework takes a model, and what it is asked for: policy, prices, bounds."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from amprewrite.dtypes import Processor
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Planner
from amprewrite.ir import ProgramGraph
from amprewrite.passes import Setting, check_placement, make_plan
from amprewrite.passes.budget import Budget
from amprewrite.passes.cost import Objective
from amprewrite.passes.cost_model import EAGER, CostModel, cost_model
from amprewrite.passes.measured import measured_model
from amprewrite.passes.tolerance import Tolerance, check_tolerance
from amprewrite.plan import Plan
from amprewrite.plan.calibration import load_calibration
from amprewrite.policy import Matcher, Policy, Rule, load_policy


def side_of(model: object) -> Any:
    """Return the adapter of the framework of ``model``; its modules load only then.

    Raises:
        UnsupportedError: The model is of no supported kind.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        kinds: list[type] = [torch.nn.Module]
        if "torch.export" in sys.modules:
            kinds.append(torch.export.ExportedProgram)
        if isinstance(model, tuple(kinds)):
            return import_module("amprewrite.frameworks.torch_fx.convert")
    flax: Any = sys.modules.get("flax.linen")
    linen = flax is not None and isinstance(model, flax.Module)  # is not callable
    function = callable(model) and not isinstance(model, type)
    if "jax" in sys.modules and (function or linen):
        return import_module("amprewrite.frameworks.jaxpr.convert")
    msg = (
        f"cannot convert a {type(model).__name__}; want a torch.nn.Module, "
        f"torch.fx.GraphModule, torch.export.ExportedProgram, or with JAX imported a "
        f"function, equinox.Module, flax.linen.Module or flax.nnx.Module"
    )
    raise UnsupportedError(msg)


def module_beside(model: object, name: str) -> Any:
    """Return another module of the framework of ``model``."""
    package = side_of(model).__name__.rpartition(".")[0]
    return import_module(f"{package}.{name}")


def prices(
    model: object,
    policy: Policy,
    target: str,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> CostModel:
    """Return the prices of ``target`` that were measured on the device of a model.

    Where none were, see ``amprewrite calibrate``, the default ones of ``target``.

    Raises:
        UnsupportedError: No such target, or the model is of no supported kind.
    """
    default = cost_model(target)
    if not policy.low:
        return default
    device = module_beside(model, "calibrate").device_of(model, args, kwargs)
    found = load_calibration(device)
    measured = found and measured_model(default, found, policy.low, policy.full)
    return measured or default


def planner(
    policy: str | Path | Policy,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    placement: str = "promote",
    model: CostModel = EAGER,
) -> Planner:
    """Return what plans by ``policy`` and ``overrides``; see :func:`convert`.

    Args:
        policy: The policy.
        overrides: Rules tried before its own.
        placement: Name of the strategy.
        model: What things cost, see :func:`prices`.

    Raises:
        PolicyError: The policy or an override has mistakes.
        UnsupportedError: No such placement.
    """
    loaded = load_policy(policy)
    check_placement(placement)
    objective = Objective(model)
    Matcher(loaded, overrides)  # finds mistakes now, not at the first call

    def plan(
        graph: ProgramGraph,
        *,
        training: bool,
        captured: str,
        differentiated: bool = True,
    ) -> Plan:
        setting = Setting(placement, training, captured, objective, differentiated)
        return make_plan(graph, Matcher(loaded, overrides), setting)

    return plan


def processor_of(policy: Policy) -> Processor | None:
    """Return what promotes operands by ``policy``; None if it leaves them alone."""
    if not policy.promotion:
        return None
    return Processor(
        policy.promotion, x64=True, truncate_complex=policy.truncate_complex
    )


@dataclass(frozen=True)
class Asked:
    """What ``convert``, ``inspect`` and ``pareto`` are asked for, as they name it."""

    model: Any
    policy: Policy
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    overrides: Sequence[Rule | Mapping[str, object]]
    target: str
    placement: str = "optimal"
    tolerance: Tolerance | None = None

    @cached_property
    def side(self) -> Any:
        """The adapter of the framework of the model."""
        return side_of(self.model)

    @cached_property
    def prices(self) -> CostModel:
        """What things cost on the device of the model."""
        return prices(self.model, self.policy, self.target, self.args, self.kwargs)

    def budget(self) -> Budget | None:
        """Return what plans within the tolerance; None if there is none.

        Raises:
            ToleranceError: It is no tolerance.
            UnsupportedError: The placement or the call takes none.
        """
        if self.tolerance is None:
            return None
        check_placement(self.placement)
        check_tolerance(self.tolerance, self.placement)
        if self.args is None and self.kwargs is None:
            msg = "tolerance needs args=, the arguments that the error is measured on"
            raise UnsupportedError(msg)
        if not self.policy.low:
            return None  # nothing is lowered, so that nothing has an error
        matcher = partial(Matcher, self.policy, self.overrides)
        return Budget(self.tolerance, matcher, Objective(self.prices))

    def request(self, budget: Any, **options: Any) -> Any:
        """Return the request for the framework.

        Args:
            budget: What plans within a tolerance; None for none.
            **options: Other fields of the request.
        """
        return self.side.Request(
            planner=planner(self.policy, self.overrides, self.placement, self.prices),
            processor=processor_of(self.policy),
            low=self.policy.low,
            args=self.args,
            kwargs=self.kwargs,
            budget=budget,
            **options,
        )
