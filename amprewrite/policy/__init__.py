"""Policies: the class of every op, as data with reasons."""

from amprewrite.policy.load import load_policy, shipped_policies
from amprewrite.policy.match import Matcher
from amprewrite.policy.model import OpClass, OpEntry, Policy, Rule
from amprewrite.policy.names import PolicyLike
from amprewrite.policy.reason import Reason

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
