"""The pipeline of passes: classify, demand, place, casts, cost."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from amprewrite.dtypes import FORMATS, is_float, same_kind
from amprewrite.errors import UnsupportedError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import classify, is_complex, refuse_complex
from amprewrite.passes.analysis.context import Assignment, Placement, Situation
from amprewrite.passes.analysis.demand import (
    TESTED,
    Demands,
    compute_demand,
    find_followed,
)
from amprewrite.passes.analysis.values import (
    NOTHING_RETURNED,
    find_returned,
    mutated_storages,
    weak_values,
    weight_roots,
)
from amprewrite.passes.cost.cost import Fusion, Objective, plan_cost, priced_casts
from amprewrite.passes.guards import find_guards, overruled
from amprewrite.passes.placement.casts import build_casts, find_hoisted, loop_entries
from amprewrite.passes.placement.constraints import (
    Chosen,
    Freedom,
    find_freedom,
    place_assignment,
)
from amprewrite.passes.placement.contractions import (
    NO_FORMATS,
    contract_formats,
    contracted,
    find_biases,
)
from amprewrite.passes.placement.optimal import (
    Optimum,
    Problem,
    build_problem,
    choose_optimal,
)
from amprewrite.passes.placement.paint import PAINTED, paint
from amprewrite.passes.placement.promote import place, place_with_storage
from amprewrite.plan import DEFAULT_PRICES, NOTHING_LOWERED, Decision, Plan
from amprewrite.plan.bounds import FASTEST
from amprewrite.plan.facts import without_kernel
from amprewrite.plan.hardware import Kernels
from amprewrite.plan.validation.fingerprint import fingerprint
from amprewrite.plan.validation.maker import policy_digest
from amprewrite.policy import Matcher, OpClass, Policy
from amprewrite.policy.match import Match
from amprewrite.policy.model import Contract
from amprewrite.runtime.collector import collector_paused

PLACEMENTS = ("promote", "paint", "optimal")
"""Names of the strategies of :func:`make_plan` that users choose."""

FULL = "full"
"""Strategy that lowers nothing: a candidate beside the others."""

LEFT: dict[Assignment, str] = {
    "low": "never",
    "full": "placement 'full' lowers nothing",
}
"""Reason for each assignment of that strategy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a plan that come from the capture and the request.

    Attributes:
        placement: Name of the strategy.
        keep_parameter_dtype: Whether parameters keep their dtype, to be trained.
        captured: Description of the capture, for the plan.
        objective: Prices of a target, and limits on errors.
        differentiable: Whether gradients may be taken through the program, so that
            casts stay in the bodies of loops.
        elsewhere: Module paths of the model that other programs run.
    """

    placement: str = "promote"
    keep_parameter_dtype: bool = False
    captured: str = "given as a graph"
    objective: Objective = field(default_factory=Objective)
    differentiable: bool = True
    elsewhere: Collection[str] = ()


def check_placement(name: str) -> None:
    """Check that there is a placement called ``name``.

    Raises:
        UnsupportedError: There is none.
    """
    if name not in PLACEMENTS:
        known = ", ".join((*PLACEMENTS, FASTEST))
        msg = f"unknown placement {name!r}; want {known}"
        raise UnsupportedError(msg)


@collector_paused()
def make_plan(graph: ProgramGraph, matcher: Matcher, setting: Setting) -> Plan:
    """Return the plan for ``graph``.

    Args:
        graph: The program.
        matcher: Policy and overrides.
        setting: Settings of the plan.

    Raises:
        UnsupportedError: No such placement.
        PromotionError: An op orders complex numbers, under a policy that lowers or
            promotes.
        ComplexTruncationError: An op drops an imaginary part, under such a policy.
    """
    return prepare(graph, matcher, setting).plan(setting.objective)


def exact_values(
    graph: ProgramGraph, matcher: Matcher, outputs: Collection[str] = ()
) -> frozenset[str]:
    """Return the values of ``graph`` that make exact arguments.

    Args:
        graph: The program.
        matcher: Policy and overrides.
        outputs: Outputs that do so outside of the program.
    """
    if not matcher.policy.low or not matcher.policy.demand:
        return frozenset()
    demands = compute_demand(graph, classify(graph, matcher), (), outputs)
    return frozenset(name for name, demand in demands.of.items() if demand >= TESTED)


def prepare(graph: ProgramGraph, matcher: Matcher, setting: Setting) -> "Prepared":
    """Return the facts of a program, from which it is planned at any prices.

    Raises as :func:`make_plan` does.
    """
    if setting.placement != FULL:
        check_placement(setting.placement)
    policy = matcher.policy
    if policy.low or policy.promotion:
        refuse_complex(graph, policy)
    classes = classify(graph, matcher)
    outputs = output_dtypes(graph, policy)
    demanding = outputs if setting.placement == "promote" else ()
    situation = situate(graph, policy, classes, demanding)
    if policy.low and policy.demand:
        returned = zip(graph.outputs, outputs, strict=True)
        full = [name for name, dtype in returned if dtype == policy.full]
        guards = find_guards(graph, classes, full, policy.low, policy.full)
        situation = replace(situation, guards=guards)
    if policy.low and not setting.differentiable:
        situation = replace(situation, entries=loop_entries(graph, policy.full))
    return Prepared(situation, matcher, setting, outputs)


@dataclass(frozen=True)
class Prepared:
    """A program with all facts that do not depend on prices.

    Attributes:
        situation: The facts before placement.
        matcher: Policy and overrides; it has met every op.
        setting: Settings of the plan; its prices are not used.
        outputs: Dtype in which each output is returned.
    """

    situation: Situation
    matcher: Matcher
    setting: Setting
    outputs: tuple[str, ...]

    @cached_property
    def freedom(self) -> Freedom:
        """The choices of a solver."""
        keep = self.setting.keep_parameter_dtype
        return find_freedom(self.situation, keep_parameter_dtype=keep)

    @cached_property
    def _formats(self) -> Mapping[str, Contract]:
        at = self.situation
        return contract_formats(at.graph, self.matcher, at.classes)

    @cached_property
    def _program(self) -> tuple[str, ...]:
        return fingerprint(self.situation.graph)

    def plan(self, objective: Objective) -> Plan:
        """Return the plan at the prices of ``objective``.

        Raises:
            ToleranceError: No placement is within the limits of ``objective``.
        """
        setting, matcher, outputs = self.setting, self.matcher, self.outputs
        graph, policy = self.situation.graph, matcher.policy
        placement, optimum = self._place(objective)
        formats = self._formats
        if optimum is not None and objective.limits:
            formats = {op: formats[op] for op in optimum.eight}
        situation = replace(self.situation, low_weights=placement.low_weights)
        casts = build_casts(
            situation, placement, outputs, fold=not setting.keep_parameter_dtype
        )
        fusion = Fusion(graph, situation.classes, objective.model)
        casts = priced_casts(fusion, casts)
        cost = plan_cost(situation, placement, casts, objective, fusion)
        plan = Plan(
            policy=policy.name,
            placement=setting.placement,
            low=policy.low,
            full=policy.full,
            captured=setting.captured,
            decisions=tuple(
                _quantised(
                    _decision(op, situation, placement, objective.model.kernels),
                    formats.get(op.name, NO_FORMATS),
                )
                for op in graph.ops
            ),
            casts=casts,
            storage=tuple(
                (c.value, c.to_dtype) for c in casts if c.folding == "storage"
            ),
            cost=replace(cost, lower_bound=optimum.bound if optimum else None),
            target=objective.model.target,
            prices=objective.model.source,
            training=setting.keep_parameter_dtype and setting.differentiable,
            outputs=outputs,
            program=self._program,
            overrides=matcher.given,
            policy_digest=policy_digest(policy),
        )
        exact = [op.name for op in filter(situation.demands.is_exact, graph.ops)]
        warnings = _warnings(graph, plan, matcher, exact, setting.elsewhere)
        rounded = overruled(graph, plan, matcher, situation.classes)
        stopped = [optimum.warning] if optimum and optimum.stopped else []
        return plan.with_warnings(*warnings, *rounded, *stopped)

    def _place(self, objective: Objective) -> tuple[Placement, Optimum | None]:
        """Return the placement that the setting asks for, and its certificate."""
        situation, keep = self.situation, self.setting.keep_parameter_dtype
        if not situation.policy.low:
            return place(situation), None
        if self.setting.placement == "promote":
            return _promote(situation, keep_parameter_dtype=keep), None
        if self.setting.placement == "paint":
            assigned = paint(situation, self.freedom)
            chosen, optimum = Chosen(self.freedom, assigned, PAINTED), None
        elif self.setting.placement == FULL:
            nothing: dict[str, Assignment]
            nothing = dict.fromkeys(self.freedom.assignable, "full")
            chosen, optimum = Chosen(self.freedom, nothing, LEFT), None
        else:
            optimum = choose_optimal(self._problem(objective), objective.limits)
            chosen = optimum.chosen
        placed = place_assignment(situation, chosen, keep_parameter_dtype=keep)
        return placed[0], optimum

    def _problem(self, objective: Objective) -> Problem:
        return build_problem(
            self.situation,
            self.freedom,
            self.outputs,
            objective.model,
            keep_parameter_dtype=self.setting.keep_parameter_dtype,
            formats=self._formats if objective.limits else {},
        )


def output_dtypes(graph: ProgramGraph, policy: Policy) -> tuple[str, ...]:
    """Return the dtype in which each output of ``graph`` is returned.

    Under a policy that promotes, a state keeps the dtype that it is stored in, so that
    it is the same after any number of steps (FLIP 1777 asks for that). Floats never
    become integers by it.
    """
    given = {"low": policy.low or policy.full, "full": policy.full}
    wanted = given.get(policy.output, policy.output)
    traced = (graph.values[name].dtype for name in graph.outputs)
    if wanted == "as-traced":
        dtypes = list(traced)
    else:
        dtypes = [wanted if dtype == policy.full else dtype for dtype in traced]
    for index, name in graph.states if policy.promotion else ():
        stored = graph.values[name].dtype
        if _is_storable(graph.values[graph.outputs[index]].dtype, stored):
            dtypes[index] = stored
    return tuple(dtypes)


def _is_storable(new: str, stored: str) -> bool:
    """Return whether a state may be cast back; complex numbers passed a check."""
    if new not in FORMATS or stored not in FORMATS:  # a key, a token
        return False
    return same_kind(new, stored) or (is_complex(new) and is_float(stored))


def _promote(situation: Situation, *, keep_parameter_dtype: bool) -> Placement:
    """Place forward; a second time with hoisted casts, if loops allow them."""
    placement, _ = place_with_storage(
        situation, keep_parameter_dtype=keep_parameter_dtype
    )
    if not situation.entries:
        return placement
    hoisted = replace(situation, hoisted=find_hoisted(situation, placement))
    return place_with_storage(hoisted, keep_parameter_dtype=keep_parameter_dtype)[0]


def situate(
    graph: ProgramGraph,
    policy: Policy,
    classes: Mapping[str, Match],
    outputs: tuple[str, ...],
) -> Situation:
    """Return the facts about ``graph`` that placement uses.

    Args:
        graph: The program.
        policy: The policy.
        classes: Class of every op.
        outputs: Dtype of each output, if it demands precision of its producer: a
            placement that weighs costs casts an output like any other value.
    """
    demands = Demands()
    if policy.demand and policy.low:
        pairs = zip(graph.outputs, outputs, strict=bool(outputs))
        full = (name for name, dtype in pairs if dtype == policy.full)
        demands = compute_demand(graph, classes, full)
    weights = weight_roots(graph, classes, policy.full)
    low = policy.low
    return Situation(
        graph=graph,
        policy=policy,
        classes=classes,
        demands=demands,
        weak=weak_values(graph, classes, low) if low else frozenset(),
        weights=weights,
        mutated=mutated_storages(graph),
        followed=find_followed(graph, classes, demands, weights, low) if low else {},
        biases=find_biases(graph, classes),
        returned=(
            find_returned(graph, output_dtypes(graph, policy), policy.full, weights)
            if low
            else NOTHING_RETURNED
        ),
    )


def _decision(
    op: Op, situation: Situation, placement: Placement, kernels: Kernels
) -> Decision:
    found, placed = situation.classes[op.name], placement.ops[op.name]
    sums = contracted(op, found, placed, situation.policy, kernels)
    return Decision(
        op=op.name,
        canonical=op.canonical,
        native=op.native,
        op_class=str(found.op_class),
        precision=placed.precision,
        rule=found.rule,
        why=placed.why or found.why,
        causes=placed.causes,
        path=op.path,
        source=op.source,
        operands=placed.operands,
        results=placed.results,
        reason=found.reason,
        accumulator=sums.accumulator,
        derivative=sums.derivative,
        derivative_accumulator=sums.derivative_accumulator,
        calls=op.calls,
    )


def _quantised(decision: Decision, formats: Contract) -> Decision:
    """Return ``decision`` with the 8-bit formats of its contraction."""
    if not formats:
        return decision
    return replace(
        decision,
        forward=formats.forward,
        backward=formats.backward,
        scaling=formats.scaling,
        kernel="" if formats.kernel == "emulated" else formats.kernel,
    )


def _warnings(
    graph: ProgramGraph,
    plan: Plan,
    matcher: Matcher,
    exact: Collection[str],
    elsewhere: Collection[str],
) -> Iterator[str]:
    unused = matcher.unused(graph.ops, elsewhere)
    yield from (f"unused rule: {line}" for line in unused)
    yield from without_kernel(plan, matcher.policy.contract)
    if not plan.low or plan.lowered or plan.quantised:
        return
    why = why_nothing(graph, plan, matcher, exact)
    count = len(plan.decisions)
    yield f"{NOTHING_LOWERED} {count} ops: nothing was lowered; {why}"


# The reason why a plan lowers nothing, for its warning.

REASONS = 3
"""Number of reasons that are named, the most common first."""


def why_nothing(
    graph: ProgramGraph, plan: Plan, matcher: Matcher, exact: Collection[str] = ()
) -> str:
    """Return the reason why ``plan`` lowers no op of ``graph``.

    Args:
        graph: The program.
        plan: Its plan, under a policy with a low dtype.
        matcher: The policy and overrides.
        exact: Ops that make an exact argument, which no price lowers.
    """
    floats = {v.dtype for v in graph.values.values() if v.is_float}
    if floats and plan.full not in floats:
        return f"the model is already in {', '.join(sorted(floats))}"
    free = {d.op for d in plan.decisions if d.op_class == OpClass.ALLOW}
    if not free.issubset(exact):
        by = f" by prices {plan.prices}" if plan.prices != DEFAULT_PRICES else ""
        return f"it would cost more than it saves{by}, or is not safe"
    pairs = zip(graph.ops, plan.decisions, strict=True)
    allowed = [d for op, d in pairs if matcher.listed(op).op_class is OpClass.ALLOW]
    if not allowed:
        return f"no allow op of dtype {plan.full} was found"
    reasons = Counter(map(_said, allowed))
    said = "; ".join(reason for reason, _ in reasons.most_common(REASONS))
    more = "; ..." if len(reasons) > REASONS else ""
    return f"the policy allows {len(allowed)} of them, which are kept: {said}{more}"


def _said(decision: Decision) -> str:
    """Return the reason that keeps an op full, with the key of its rule."""
    return (
        f"{decision.rule}, {decision.why}" if decision.reason.is_rule else decision.why
    )
