"""Six products in a row, and what is looked for among their plans."""

from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.passes.error_budget.measured_search import Goal
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Measure, Measurements, Sensitivity
from amprewrite.policy import Matcher, load_policy
from tests.placement_problem import graph_of

LAYER = """
    op{n} = linear(%h{m}, %w) -> %h{n}: f32[512,512]
      | contracted=512
"""

COUNT = 6

GRAPH = graph_of(
    "%h0: f32[512,512] input\n%w: f32[512,512] parameter\n"
    + "".join(LAYER.format(n=n, m=n - 1) for n in range(1, COUNT + 1)).replace(
        "\n    ", "\n"
    )
    + f"return %h{COUNT}"
)


def sensitivity(factor: float = 1.0) -> Sensitivity:
    """Later layers round worse, each by twice the last."""
    return Sensitivity(
        {f"h{n}": 1e-6 * factor**n for n in range(1, COUNT + 1)},
        {(f"h{n - 1}", f"op{n}"): 1e-6 * factor**n for n in range(1, COUNT + 1)},
        4,
        {"h3": 1.2e5},
    )


def plan_for(objective: Objective) -> Plan:
    setting = Setting("optimal", objective=objective)
    return make_plan(GRAPH, Matcher(load_policy("fp16")), setting)


def goal(target: float, found: Sensitivity, measure: Measure | None = None) -> Goal:
    def exact(plan: Plan) -> float:
        return found.predicted(plan, GRAPH)

    known = Measurements(GRAPH, False, "", found, target, measure or exact)
    return Goal(known, plan_for, EAGER)
