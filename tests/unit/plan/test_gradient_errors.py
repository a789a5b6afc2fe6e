"""The predicted error of gradients under a plan."""

import pytest

from amprewrite.plan.facts import Gradients

FOUND = Gradients(
    sizes={"a": 3.0, "b": 4.0, "zero": 1e-6},
    counts={"a": 4, "b": 4, "zero": 4},
    eight={
        "one": {"a": 0.3, "b": 0.4, "zero": 1e-5},
        "two": {"a": 0.0, "b": 1.2, "zero": 0.0},
    },
    low={"a": 0.03, "b": 0.0, "zero": 0.0},
    low_outputs=1e-4,
)


def test_the_errors_of_contractions_add_up_as_squares() -> None:
    assert FOUND.error((), 0.0).error == 0.0
    assert FOUND.error(["one"], 0.0).error == pytest.approx(0.1)
    found = FOUND.error(["one", "two"], 0.0)
    assert found.error == pytest.approx((0.25 + 1.44) ** 0.5 / 5)
    assert found.parameter == "b"
    assert found.worst == pytest.approx((0.16 + 1.44) ** 0.5 / 4)


def test_a_gradient_of_zero_is_never_the_worst() -> None:
    """That of %zero has a relative error of 10."""
    assert FOUND.error(["one"], 0.0).worst == pytest.approx(0.1)


def test_16_bits_count_as_much_as_they_do_in_the_outputs() -> None:
    assert FOUND.error((), 1e-4).error == pytest.approx(0.03 / 5)
    assert FOUND.error((), 1e-4 / 4).error == pytest.approx(0.015 / 5)
    assert FOUND.error((), 1e-4 / 4).parameter == "a"
