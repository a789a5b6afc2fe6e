"""Policies: the class of every op, as data with reasons."""

from amprewrite.policy.load import PolicyLike, load_policy, shipped_policies
from amprewrite.policy.match import Matcher, Reason
from amprewrite.policy.model import OpClass, OpEntry, Policy, Rule

__all__ = [
    "Matcher",
    "OpClass",
    "OpEntry",
    "Policy",
    "PolicyLike",
    "Reason",
    "Rule",
    "load_policy",
    "shipped_policies",
]
