"""A compiler for precision: reads a model as a graph, places casts, proves it right."""

from amprewrite import errors
from amprewrite.api import (
    convert,
    inspect,
    original,
    pareto,
    plan_of,
    verify,
)
from amprewrite.marks import full_precision, low_precision
from amprewrite.plan import Plan
from amprewrite.policy import Policy, Rule, load_policy
from amprewrite.probes import histogram, monitor
from amprewrite.scaling import unit_scale
from amprewrite.simulation import simulate

__version__ = "0.1.0"

__all__ = [
    "Plan",
    "Policy",
    "Rule",
    "__version__",
    "convert",
    "errors",
    "full_precision",
    "histogram",
    "inspect",
    "load_policy",
    "low_precision",
    "monitor",
    "original",
    "pareto",
    "plan_of",
    "simulate",
    "unit_scale",
    "verify",
]
