from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from amprewrite.measure import CONVERTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call, Run, Walked


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
