"""Turn the arguments of the public functions into a request to a framework."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from amprewrite.dtypes import Processor
from amprewrite.errors import ArgumentError, UnsupportedError
from amprewrite.frameworks.base import Budget as RequestBudget
from amprewrite.frameworks.base import (
    Framework,
    Planner,
    Recomputer,
    Request,
    check_arguments,
    check_overrides,
)
from amprewrite.ir import ProgramGraph
from amprewrite.passes import Setting, check_placement, exact_values, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER, CostModel, cost_model, device_model
from amprewrite.passes.error_budget.budget import Budget
from amprewrite.passes.error_budget.fastest import Fastest
from amprewrite.passes.recompute import with_recompute
from amprewrite.plan import Plan
from amprewrite.plan.bounds import (
    AUTOCAST,
    FASTEST,
    Tolerance,
    check_tolerance,
    placement_for,
    strategy_of,
)
from amprewrite.plan.hardware import Conditions, Device, load_calibration
from amprewrite.plan.validation.maker import policy_digest
from amprewrite.policy import Matcher, Policy, PolicyLike, Rule, load_policy
from amprewrite.registry import framework_of


def prices(  # noqa: PLR0913  # the conditions of a plan
    model: object,
    policy: Policy,
    target: str,
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    device: Device | None = None,
    *,
    weighed: bool = False,
) -> CostModel:
    """Return the prices of ``target`` on the device of a model.

    They are measured by ``amprewrite calibrate``; else on a processor of its class, or
    by its data sheet; else the default ones of ``target``.

    Args:
        model: The model.
        policy: The policy, for its low dtype.
        target: ``eager`` or ``compiled``.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        device: Another device than that of the model.
        weighed: Whether the placement weighs prices, so that it is worth a warning that
            those of the device are unknown.

    Raises:
        UnsupportedError: No such target, or the model is of no supported kind.
    """
    default = cost_model(target)
    if not policy.low:
        return default
    framework = framework_of(model)
    on = device or framework.device_of(model, args, kwargs)
    found = load_calibration(on)
    priced = device_model(
        default, on, found, low=policy.low, full=policy.full, weighed=weighed
    )
    return replace(priced, kernels=framework.kernels(on, found))


def planner(
    policy: PolicyLike,
    overrides: Sequence[Rule | Mapping[str, object]] = (),
    placement: str = "promote",
    model: CostModel = EAGER,
) -> Planner:
    """Return the planner for ``policy`` and ``overrides``; see :func:`convert`.

    Args:
        policy: The policy.
        overrides: Rules tried before its own.
        placement: Name of the strategy.
        model: Prices, see :func:`prices`.

    Raises:
        PolicyError: The policy or an override has mistakes.
        UnsupportedError: No such placement.
    """
    loaded, strategy = load_policy(policy), strategy_of(placement)
    check_placement(strategy)
    check_overrides(overrides)
    Matcher(loaded, overrides)  # finds mistakes now, not at the first call
    return PlansByPolicy(loaded, tuple(overrides), strategy, Objective(model))


@dataclass(frozen=True)
class PlansByPolicy:
    """Planner by a policy; plain data, so that its owners can be pickled.

    Attributes:
        policy: The policy.
        overrides: Rules tried before its own.
        placement: Name of the strategy.
        objective: Prices and error costs to minimise.
    """

    policy: Policy
    overrides: tuple[Rule | Mapping[str, object], ...]
    placement: str
    objective: Objective

    def __call__(
        self,
        graph: ProgramGraph,
        *,
        keep_parameter_dtype: bool,
        captured: str,
        differentiable: bool = True,
        full: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> Plan:
        """Return the plan for ``graph``; see ``frameworks.base.Planner``."""
        setting = Setting(
            self.placement,
            keep_parameter_dtype,
            captured,
            self.objective,
            differentiable,
            elsewhere,
        )
        matcher = Matcher(self.policy, self.overrides, frozenset(full))
        return make_plan(graph, matcher, setting)

    def exact_values(
        self, graph: ProgramGraph, outputs: Collection[str] = ()
    ) -> frozenset[str]:
        """Return the values that make exact arguments; see ``frameworks.base``."""
        return exact_values(graph, Matcher(self.policy, self.overrides), outputs)


def refuse_beside_plan(
    plan: object,
    placement: str | None,
    tolerance: Tolerance | None,
    overrides: Sequence[Rule | Mapping[str, object]],
) -> None:
    """Refuse arguments that make a plan beside one that is given.

    Raises:
        ArgumentError: ``plan`` is no plan.
        UnsupportedError: A placement, tolerance or overrides are given beside it.
    """
    if not isinstance(plan, Plan):
        msg = (
            f"plan is a {type(plan).__name__}; want a Plan, as amprewrite.inspect "
            f"makes it and Plan.load reads it"
        )
        raise ArgumentError(msg)
    given = {
        "placement": placement not in (None, plan.placement),
        "tolerance": tolerance is not None,
        "overrides": bool(overrides),
    }
    for name in (name for name, is_given in given.items() if is_given):
        msg = (
            f"plan= is applied as it is, so that it takes no {name}; give that to "
            f"inspect(), which makes a plan, and pass the plan"
        )
        raise UnsupportedError(msg)


def recomputer(*, recompute: object) -> Recomputer | None:
    """Return the function that adds recomputed regions to plans; None without.

    Raises:
        ArgumentError: ``recompute`` is no truth value.
    """
    if not isinstance(recompute, bool):
        msg = (
            f"recompute={recompute!r:.60}; want True to compute norms, softmaxes and "
            f"activations again in the backward pass, or False"
        )
        raise ArgumentError(msg)
    return with_recompute if recompute else None


def processor_of(policy: Policy) -> Processor | None:
    """Return the promotion system of ``policy``; None if it promotes nothing."""
    if not policy.promotion:
        return None
    return Processor(
        policy.promotion, x64=True, truncate_complex=policy.truncate_complex
    )


@dataclass(frozen=True)
class Asked:
    """Arguments of ``convert``, ``inspect`` and ``pareto``, with their meaning.

    Attributes:
        model: The model.
        policy: The policy.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        overrides: Rules tried before those of the policy.
        target: Way to run the result; None for the framework's default.
        wanted: Name of the placement; None for the default.
        tolerance: Bound on the error.
        device: Name of the device to plan for; None for that of the model.
    """

    model: object
    policy: Policy
    args: tuple[object, ...] | None
    kwargs: Mapping[str, object] | None
    overrides: Sequence[Rule | Mapping[str, object]]
    target: str | None
    wanted: str | None = None
    tolerance: Tolerance | None = None
    device: object = None

    def __post_init__(self) -> None:
        """Check the arguments that need no framework.

        Raises:
            ArgumentError: Call arguments or overrides are of the wrong kind.
        """
        check_arguments(self.args, self.kwargs)
        check_overrides(self.overrides)

    @property
    def placement(self) -> str:
        """Name of the placement."""
        return placement_for(self.wanted, self.tolerance)

    @cached_property
    def framework(self) -> Framework:
        """The framework of the model."""
        return framework_of(self.model)

    @property
    def runs(self) -> str:
        """Way to run the result: ``eager`` or ``compiled``."""
        return self.framework.default_target() if self.target is None else self.target

    @cached_property
    def prices(self) -> CostModel:
        """Prices on the device of the model, or the device to plan for."""
        return prices(
            self.model,
            self.policy,
            self.runs,
            self.args,
            self.kwargs,
            self.planned_for,
            weighed=self.placement == "optimal",
        )

    @cached_property
    def planned_for(self) -> Device | None:
        """The device to plan for; None for that of the model.

        Raises:
            UnsupportedError: No device has that name.
        """
        if self.device is None:
            return None
        return self.framework.device_named(str(self.device))

    def searched(self, *settings: str) -> RequestBudget | None:
        """Return the planner that measures plans; None if they are only priced.

        Args:
            settings: Further settings on which times depend, as text.

        Raises:
            ToleranceError: The tolerance is no usable bound.
            UnsupportedError: The placement, the device or the call accepts none.
        """
        found = self.budget()
        if found is None or self.placement != FASTEST:
            return found
        return Fastest(**vars(found), conditions=self._conditions(settings))

    def budget(self) -> Budget | None:
        """Return the planner within the tolerance; None without a tolerance.

        Raises:
            ToleranceError: The tolerance is no usable bound.
            UnsupportedError: The placement or the call accepts none.
        """
        timed = self.placement == FASTEST
        tolerance = AUTOCAST if timed and self.tolerance is None else self.tolerance
        if tolerance is None:
            return None
        check_placement(strategy_of(self.placement))
        check_tolerance(tolerance, self.placement)
        if self.args is None and self.kwargs is None:
            what = "placement 'fastest'" if timed else "tolerance"
            how = "plans are timed" if timed else "the error is measured"
            msg = f"{what} needs args=, the arguments that {how} on"
            raise UnsupportedError(msg)
        if not self.policy.low and self.policy.contract:
            msg = (
                f"tolerance cannot be kept by policy {self.policy.name}: it rounds "
                f"contractions to 8 bits and has no low dtype; want fp8, or a policy "
                f"that extends bf16 with [contract], or leave tolerance=None"
            )
            raise UnsupportedError(msg)
        if not self.policy.low:
            return None  # nothing is lowered, so that nothing has an error
        matcher = partial(Matcher, self.policy, self.overrides)
        substitutes = self.tolerance is None
        return Budget(tolerance, matcher, Objective(self.prices), substitutes)

    def _conditions(self, settings: tuple[str, ...]) -> Conditions:
        """Return the conditions under which a plan that was timed holds.

        Raises:
            UnsupportedError: The device to plan for is another one than the model's.
        """
        device = self.framework.device_of(self.model, self.args, self.kwargs)
        if self.planned_for not in (None, device):
            msg = (
                f"placement 'fastest' times plans where the model is, on {device}, and "
                f"device is {str(self.device)!r}; want device=None, or placement "
                f"'optimal', which plans by prices"
            )
            raise UnsupportedError(msg)
        rules = tuple(map(str, self.overrides))
        digest = policy_digest(self.policy)
        run = self.runs, str(self.tolerance), *settings
        return (str(device), digest, *rules, *run)

    def request(self, budget: RequestBudget | None) -> Request:
        """Return the request to the framework, for inference or training.

        Args:
            budget: Planner within a tolerance; None without one.
        """
        return Request(
            planner=planner(self.policy, self.overrides, self.placement, self.prices),
            processor=processor_of(self.policy),
            low=self.policy.low,
            args=self.args,
            kwargs=self.kwargs,
            budget=budget,
            device=self.planned_for.kind if self.planned_for else "",
        )
