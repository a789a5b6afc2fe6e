"""A compiler for precision: reads a model as a graph, places casts, proves it right."""

from amprewrite import errors
from amprewrite.api import convert, inspect, pareto, verify
from amprewrite.marks import full_precision, low_precision
from amprewrite.plan import Plan
from amprewrite.policy import Policy, Rule, load_policy

__all__ = [
    "Plan",
    "Policy",
    "Rule",
    "convert",
    "errors",
    "full_precision",
    "inspect",
    "load_policy",
    "low_precision",
    "pareto",
    "verify",
]
