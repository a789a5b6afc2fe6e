"""A compiler for precision: reads a model as a graph, places casts, proves it right."""

from amprewrite import errors
from amprewrite.api import convert, inspect, verify
from amprewrite.plan import Plan
from amprewrite.policy import Policy, Rule, load_policy

__all__ = [
    "Plan",
    "Policy",
    "Rule",
    "convert",
    "errors",
    "inspect",
    "load_policy",
    "verify",
]
