"""The parts of placement ``optimal`` for a program that a test states as text."""

from textwrap import dedent

from amprewrite.ir import ProgramGraph, check_graph, parse_graph
from amprewrite.passes.analysis.classify import classify
from amprewrite.passes.analysis.context import Situation
from amprewrite.passes.cost.cost_model import CostModel
from amprewrite.passes.pipeline import output_dtypes, situate
from amprewrite.passes.placement.constraints import Freedom, find_freedom
from amprewrite.passes.placement.optimal import Problem, build_problem
from amprewrite.policy import Matcher, Policy, load_policy

FREE_CASTS = CostModel("eager", launch=0, mac_bytes=0.0, speedup=8.0)
"""Nothing costs but bytes."""


def graph_of(text: str) -> ProgramGraph:
    return check_graph(parse_graph(dedent(text).strip()))


def situation_of(text: str, policy: str | Policy = "bf16") -> Situation:
    graph, loaded = graph_of(text), load_policy(policy)
    return situate(graph, loaded, classify(graph, Matcher(loaded)), ())


def freedom_of(
    text: str, policy: str | Policy = "bf16", *, keep_parameter_dtype: bool = False
) -> Freedom:
    return find_freedom(
        situation_of(text, policy), keep_parameter_dtype=keep_parameter_dtype
    )


def problem_of(
    text: str, model: CostModel = FREE_CASTS, *, keep_parameter_dtype: bool = False
) -> Problem:
    at = situation_of(text)
    freedom = find_freedom(at, keep_parameter_dtype=keep_parameter_dtype)
    outputs = output_dtypes(at.graph, at.policy)
    return build_problem(
        at,
        freedom,
        outputs,
        model,
        keep_parameter_dtype=keep_parameter_dtype,
    )
