"""Rules of ops: the factors of outputs and gradients, and the source of each."""

from amprewrite.unit_scaling.rules.elementwise import GATES, rule_of_function
from amprewrite.unit_scaling.rules.empirical import measure_rule
from amprewrite.unit_scaling.rules.model import Factors, Rule, constrained
from amprewrite.unit_scaling.rules.table import RULES, derive_rule, rule

__all__ = [
    "GATES",
    "RULES",
    "Factors",
    "Rule",
    "constrained",
    "derive_rule",
    "measure_rule",
    "rule",
    "rule_of_function",
]
