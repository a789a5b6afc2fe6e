import warnings

import pytest

from amprewrite.errors import AmpWarning
from amprewrite.frameworks.base import announce
from amprewrite.plan import Plan


def a_plan(*lines: str) -> Plan:
    plan = Plan("bf16", "promote", "bfloat16", "float32", "", (), ())
    return plan.with_warnings(*lines)


def test_every_warning_of_a_plan_is_given_once() -> None:
    with pytest.warns(AmpWarning) as caught:
        announce(a_plan("one", "two"))
    assert [str(w.message) for w in caught] == ["one", "two"]


def test_a_plan_without_warnings_is_quiet() -> None:
    with warnings.catch_warnings(record=True) as caught:
        announce(a_plan())
    assert caught == []


def test_a_warning_that_was_seen_is_not_repeated() -> None:
    seen = {"one"}
    with pytest.warns(AmpWarning, match="two") as caught:
        announce(a_plan("one", "two"), seen)
    assert len(caught) == 1
    assert seen == {"one", "two"}
