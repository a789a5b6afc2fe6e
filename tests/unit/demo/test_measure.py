"""What the demo measures, on vectors whose answer is known."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.demo.measure import (
    LEAST,
    Swap,
    Timing,
    errors,
    neighbours,
    parameter_bytes,
    timing,
)

REFERENCE = torch.tensor(
    [[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]], dtype=torch.float64
)


def test_errors_are_relative_to_each_row():
    vectors = REFERENCE.clone()
    vectors[0] *= 1.5
    found = errors(vectors.float(), REFERENCE)
    assert found.worst == pytest.approx(0.5)
    assert found.median < 1e-6
    assert found.cosine == pytest.approx(1)
    assert found.dtype == "float32"


def test_neighbours_of_the_same_vectors_are_the_same():
    found = neighbours(REFERENCE.float(), REFERENCE)
    assert found.same_nearest == found.sentences == 4
    assert found.swaps == ()
    assert found.pairs == 4 * 3


def test_a_swap_is_named_with_its_margin():
    vectors = REFERENCE.clone()
    vectors[2] = torch.tensor([0.9, 0.436])  # now nearer to row 0 than row 1 is
    found = neighbours(vectors, REFERENCE)
    swap = next(swap for swap in found.swaps if swap.sentence == 0)
    assert swap == Swap(0, nearer=1, farther=2, margin=swap.margin)
    assert swap.margin == pytest.approx(0.2)
    assert found.same_nearest < 4


def test_a_shared_parameter_is_counted_once():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert parameter_bytes(model) == 4 * (9 + 3 + 3)


def test_timing_takes_turns():
    order = []

    def variant(name):
        return lambda x: order.append(name) or x

    variants = {name: variant(name) for name in "ab"}
    found = timing(variants, (torch.zeros(2, 5),), budget=0)
    assert order == list("ab") * (1 + LEAST)
    assert (found.batch, found.tokens) == (2, 5)
    assert len(found.seconds["a"]) == LEAST


def test_speed_is_the_median_of_paired_rounds():
    found = Timing(1, 1, {"a": [1, 2, 300], "b": [0.5, 1, 3]})
    assert found.milliseconds("a") == 2000
    assert found.speedup("b", over="a") == 2
    assert found.speedup("a", over="b") == 0.5
