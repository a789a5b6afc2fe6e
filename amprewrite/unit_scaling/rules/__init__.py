"""Rules of ops: the factors of outputs and gradients, and the source of each."""

from amprewrite.unit_scaling.rules.elementwise import (
    GATES,
    STEADY,
    gate_factor,
    rule_of_function,
    varies,
)
from amprewrite.unit_scaling.rules.empirical import measure_rule
from amprewrite.unit_scaling.rules.model import Factors, Rule, constrained
from amprewrite.unit_scaling.rules.table import RULES, derive_rule, rule

__all__ = [
    "GATES",
    "RULES",
    "STEADY",
    "Factors",
    "Rule",
    "constrained",
    "derive_rule",
    "gate_factor",
    "measure_rule",
    "rule",
    "rule_of_function",
    "varies",
]
