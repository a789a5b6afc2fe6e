import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from amprewrite.errors import AmpWarning
from amprewrite.frameworks.base import Call, Run, Walked, announce
from amprewrite.frameworks.run_names import CONVERTED, ORIGINAL, REFERENCE
from amprewrite.plan import Plan


def test_the_runs_have_three_names():
    assert len({CONVERTED, ORIGINAL, REFERENCE}) == 3


def test_what_is_handed_over_cannot_be_changed():
    call = Call((1,), {})
    with pytest.raises(FrozenInstanceError):
        call.reference = "float32"  # pyright: ignore[reportAttributeAccessIssue]
    assert (call.reference, call.gradients) == ("float64", False)


def test_runs_share_no_defaults():
    one, two = Run({"y": np.ones(1)}), Run({})
    assert one.gradients is not two.gradients
    assert one.others == two.others == {}


def test_no_walk_has_no_graph():
    assert (Walked().reference, Walked().graph, Walked().notes) == ("", None, ())


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
