"""Policies: which class an op belongs to, as data with reasons."""

from amprewrite.policy.load import load_policy, shipped_policies
from amprewrite.policy.match import Matcher
from amprewrite.policy.model import OpClass, OpEntry, Policy, Rule

__all__ = [
    "Matcher",
    "OpClass",
    "OpEntry",
    "Policy",
    "Rule",
    "load_policy",
    "shipped_policies",
]
