"""Kinds of reasons: those that the user wrote, those that come before rules."""

from amprewrite.policy import Reason


def test_rules_of_the_user_are_told_from_facts():
    assert [r for r in Reason if r.is_rule] == [Reason.OVERRIDE, Reason.RULE]


def test_facts_come_before_rules_and_the_policy_after_them():
    fixed = {r for r in Reason if not r.is_overridable}
    assert {Reason.MARKER, Reason.FENCE, Reason.USER_CAST, Reason.BODY} <= fixed
    assert fixed.isdisjoint({Reason.OVERRIDE, Reason.OPS, Reason.GROUP})
