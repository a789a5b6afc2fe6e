"""Kinds of reasons: which of them the user wrote."""

from amprewrite.policy import Reason


def test_rules_of_the_user_are_told_from_facts():
    assert [r for r in Reason if r.is_rule] == [Reason.OVERRIDE, Reason.RULE]
