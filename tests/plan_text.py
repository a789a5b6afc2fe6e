"""A plan as a few lines of text, for tests that state it whole."""

import json
from collections.abc import Iterable, Mapping
from textwrap import dedent
from typing import Any

from amprewrite.dtypes import short_name
from amprewrite.ir import check_graph, parse_graph
from amprewrite.ir.text import tensor_text
from amprewrite.passes import Setting, make_plan
from amprewrite.passes.cost.cost import Objective
from amprewrite.passes.cost.cost_model import EAGER, CostModel
from amprewrite.plan import Cast, Plan
from amprewrite.policy import Matcher, Policy, Rule, load_policy


def plan_of(
    text: str,
    policy: str | Policy = "bf16",
    overrides: Iterable[Rule | Mapping[str, object]] = (),
    *,
    training: bool = False,
    model: CostModel = EAGER,
) -> Plan:
    """Return the plan for the program graph that ``text`` says."""
    graph = check_graph(parse_graph(dedent(text).strip()))
    matcher = Matcher(load_policy(policy), overrides)
    return make_plan(
        graph,
        matcher,
        Setting(keep_parameter_dtype=training, objective=Objective(model)),
    )


SMALL = """
%x: f32[4,8] input
%w: f32[8,8] parameter
linear = linear(%x, %w) -> %h: f32[4,8]
exp = exp(%h) -> %e: f32[4,8]
return %e
"""
"""A program whose plan has two ops and three casts."""


def plan_data() -> dict[str, Any]:
    """Return the plan for :data:`SMALL` as the data of its file."""
    return json.loads(json.dumps(plan_of(SMALL).to_json()))


def cast_line(cast: Cast) -> str:
    """Return ``%x: f32[2] -> bf16 for linear, output[0] (storage, saturates)``."""
    uses = ", ".join(
        f"{op}[{index}]" if op == "output" else op
        for op, index in dict.fromkeys(
            (op, index if op == "output" else 0) for op, index in cast.uses
        )
    )
    facts = [cast.folding] * cast.folded + ["saturates"] * cast.saturate
    facts += [f"in {cast.region}"] if cast.region else []
    tensor = tensor_text(cast.from_dtype, cast.shape)
    line = f"%{cast.value}: {tensor} -> {short_name(cast.to_dtype)} for {uses}"
    return f"{line} ({', '.join(facts)})" if facts else line


def cast_lines(plan: Plan) -> str:
    """Return every cast of ``plan``, one a line, in order."""
    return "\n".join(cast_line(cast) for cast in plan.casts)


def decision_lines(plan: Plan) -> str:
    """Return ``linear: allow bf16`` for every op of ``plan``."""
    return "\n".join(
        f"{d.op}: {d.op_class} {short_name(d.precision)}" for d in plan.decisions
    )


def assert_plan(plan: Plan, decisions: str, casts: str) -> None:
    """Compare decisions and casts with what is expected, as text."""
    assert decision_lines(plan) == dedent(decisions).strip()
    assert cast_lines(plan) == dedent(casts).strip()
