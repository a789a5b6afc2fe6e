"""The rule of dynamic loss scaling on plain numbers and on scalars of a framework."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amprewrite.training.state import (
    FLOAT32_MAX,
    RULES,
    ScaleRule,
    advice,
    is_useful,
    stuck,
)

SMALL = ScaleRule(interval=3, minimum=1.0, maximum=64.0)

RULE = st.builds(
    ScaleRule,
    growth=st.sampled_from([2.0, 4.0]),
    backoff=st.sampled_from([None, 0.5, 0.25]),
    interval=st.integers(1, 4),
    minimum=st.sampled_from([0.0, 1.0, 2.0]),
    maximum=st.sampled_from([2.0, 100.0, FLOAT32_MAX]),
    clips=st.booleans(),
)


def run(rule, scale, finite):
    """The scale and the tracker after each of many steps."""
    tracker, seen = 0, []
    for flag in finite:
        scale, tracker = rule.step(scale, tracker, flag)
        seen.append((scale, tracker))
    return seen


def test_the_scale_grows_after_finite_steps_in_a_row():
    assert run(SMALL, 8.0, [True] * 4) == [(8, 1), (8, 2), (16, 0), (16, 1)]


def test_a_step_that_is_not_finite_halves_it_and_starts_the_count_again():
    assert run(SMALL, 8.0, [True, True, False, True]) == [
        (8, 1),
        (8, 2),
        (4, 0),
        (4, 1),
    ]


def test_the_scale_stays_between_its_bounds():
    assert run(SMALL, 2.0, [False] * 3) == [(1, 0)] * 3
    assert [scale for scale, _ in run(SMALL, 32.0, [True] * 9)][2::3] == [64, 64, 64]


def test_a_scale_beyond_its_maximum_is_held_or_clipped():
    held = ScaleRule(interval=1, maximum=100.0)
    clipped = ScaleRule(interval=1, maximum=100.0, clips=True)
    assert run(held, 64.0, [True] * 2) == [(64, 0), (64, 0)]
    assert run(clipped, 64.0, [True] * 2) == [(100, 0), (100, 0)]


def test_the_largest_scale_is_a_float32():
    assert run(ScaleRule(interval=1), 2.0**127, [True]) == [(2.0**127, 0)]


def test_division_by_a_factor_is_not_multiplication_by_its_inverse():
    divides = ScaleRule(growth=3.0, backoff=None).step(5.0, 0, finite=False)[0]
    multiplies = ScaleRule(growth=3.0, backoff=1 / 3).step(5.0, 0, finite=False)[0]
    assert divides == 5 / 3
    assert multiplies == 5 * (1 / 3)
    assert divides != multiplies


@given(RULE, st.integers(0, 8), st.lists(st.booleans(), max_size=30))
def test_jax_scalars_follow_the_same_rule(rule, exponent, finite):
    jnp = pytest.importorskip("jax.numpy")
    scale, tracker = jnp.float32(2.0**exponent), jnp.int32(0)
    for flag, want in zip(finite, run(rule, 2.0**exponent, finite), strict=True):
        scale, tracker = rule.step(scale, tracker, jnp.bool_(flag), jnp.where)
        assert (float(scale), int(tracker)) == want
        assert (scale.dtype, tracker.dtype) == (jnp.float32, jnp.int32)


@given(RULE, st.integers(0, 8), st.lists(st.booleans(), max_size=30))
def test_torch_scalars_follow_the_same_rule(rule, exponent, finite):
    torch = pytest.importorskip("torch")
    scale = torch.tensor(2.0**exponent)
    tracker = torch.tensor(0, dtype=torch.int32)
    for flag, want in zip(finite, run(rule, 2.0**exponent, finite), strict=True):
        scale, tracker = rule.step(scale, tracker, torch.tensor(flag), torch.where)
        assert (scale.item(), tracker.item()) == want
        assert (scale.dtype, tracker.dtype) == (torch.float32, torch.int32)


def test_stuck_is_at_the_minimum_and_not_finite():
    assert SMALL.is_stuck(1.0, finite=False)
    assert not SMALL.is_stuck(1.0, finite=True)
    assert not SMALL.is_stuck(2.0, finite=False)


def test_stuck_on_scalars_of_a_framework():
    jnp = pytest.importorskip("jax.numpy")
    found = SMALL.is_stuck(jnp.float32(1), jnp.bool_(False))
    assert found.dtype == bool
    assert found


def test_the_rules_of_other_libraries_have_their_defaults():
    assert RULES["torch"] == ScaleRule(2.0, 0.5, 2000, 0.0, FLOAT32_MAX)
    assert RULES["flax"].interval == RULES["torch"].interval + 1
    assert RULES["mpx"].maximum == 65504
    assert RULES["jmp"].minimum == 1


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ({"growth": 1.0}, "growth > 1"),
        ({"backoff": 1.0}, "0 < backoff < 1"),
        ({"interval": 0}, "interval >= 1"),
        ({"minimum": -1.0}, "0 <= minimum"),
        ({"minimum": 8.0, "maximum": 4.0}, "minimum <= maximum"),
        ({"maximum": float("inf")}, "maximum <= 3.40"),
        ({"growth": 0.5, "interval": -1}, "growth > 1, interval >= 1"),
    ],
)
def test_numbers_out_of_range(numbers, want):
    with pytest.raises(ValueError, match=f"cannot scale a loss; want {want}"):
        ScaleRule(**numbers)


def test_where_a_scale_is_useful():
    assert is_useful("float16")
    assert is_useful("float8_e5m2")
    assert not is_useful("bfloat16")
    assert not is_useful("")


def test_advice():
    assert "below 6.0e-08 become zero" in advice("float16", scales=False)
    assert "bfloat16 has the exponents of float32" in advice("bfloat16", scales=True)
    assert "without a low dtype" in advice("", scales=True)
    assert not advice("float16", scales=True)
    assert not advice("bfloat16", scales=False)


@pytest.mark.parametrize("low", ["float16", "float8_e5m2"])
def test_advice_for_unit_scaled_models(low):
    assert not advice(low, scales=False, unit_scaled=True)
    assert f"overflow {low} with it" in advice(low, scales=True, unit_scaled=True)
    assert "not needed" in advice("bfloat16", scales=True, unit_scaled=True)


def test_the_message_of_a_stuck_scale():
    assert stuck(1.0, "head.w").startswith(
        "the gradient of head.w is not finite with the loss scale at its minimum, 1,"
    )
    assert stuck(0.5, "").startswith("gradients are not finite")
