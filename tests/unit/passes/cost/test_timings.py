"""Measured times are interpolated by shape; beyond it the nearest counts."""

import pytest

from amprewrite.passes.cost.cost_model import Point, Timings, Work

POINTS = (
    Point(1, 64**2, full=4.0, low=8.0),
    Point(1, 1024**2, full=4.0, low=2.0),
    Point(64, 64**3, full=1.0, low=2.0),
    Point(64, 64 * 1024**2, full=1.0, low=0.5),
)
TIMINGS = Timings({"product": POINTS}, saved=2)


def product(thin: int, side: int, batches: int = 1) -> Work:
    return Work("product", thin * side**2 * batches, batches, thin, 0)


def test_what_was_measured_is_found_as_it_was() -> None:
    for point in POINTS:
        found = TIMINGS.per_mac(product(point.thin, round(point.side)))
        assert found == pytest.approx((point.full, point.low))


@pytest.mark.parametrize(
    ("work", "full", "low"),
    [
        (
            product(1, 256),
            4.0,
            4.0,
        ),  # halfway between the assignments, in the logarithm
        (product(8, 256), 2.0, 2.0),  # halfway between the rows too
        (product(8, 64), 2.0, 4.0),
        (product(64, 4096), 1.0, 0.5),  # beyond: as the nearest
        (product(512, 4096), 1.0, 0.5),
        (product(1, 8), 4.0, 8.0),
        (product(64, 64, batches=12), 1.0, 2.0),
    ],
)
def test_times_between_are_interpolated(work: Work, full: float, low: float) -> None:
    assert TIMINGS.per_mac(work) == pytest.approx((full, low))
    assert TIMINGS.speedup(work) == pytest.approx(full / low)


def test_what_is_lost_is_time_without_what_bytes_save() -> None:
    fast = Work("product", 64 * 1024**2, 1, 64, 100)
    assert TIMINGS.lost(fast) == pytest.approx(0.5 * 64 * 1024**2 - 200)
    slow = Work("product", 64**3, 1, 64, 100)
    assert TIMINGS.lost(slow) == pytest.approx(-(64**3) - 200)


def test_kinds_have_their_own_times_or_those_of_products() -> None:
    convolution = Point(9, 900, full=3.0, low=1.0)
    timings = Timings({"product": POINTS, "convolution": (convolution,)}, saved=2)
    for work in (
        Work("convolution", 900, 1, 9, 0),
        Work("convolution", 10**9, 1, 1, 0),
    ):
        assert timings.per_mac(work) == pytest.approx((3.0, 1.0))
    attention = Work("attention", 64**3, 1, 64, 0)
    assert timings.per_mac(attention) == pytest.approx((1.0, 2.0))


def test_other_ops_are_dearer_by_name_or_as_most_are() -> None:
    dearer = {"add": -1.0, "gelu": 3.0, "tanh": 0.5}
    timings = Timings({"product": POINTS}, 2, dearer)
    assert [timings.dearer(name) for name in ("add", "gelu", "tanh", "erf")] == [
        0.0,
        3.0,
        0.5,
        0.5,
    ]
    assert TIMINGS.dearer("add") == 0.0
