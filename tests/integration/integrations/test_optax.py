"""Optimizers of optax in a jitted step: state stays float32, losses are those of it."""

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp

import amprewrite
from tests.jax_programs import floats, full_contractions, normal, weight

LABELS = np.arange(64) % 3
X = normal(64, 8) + 2 * np.eye(3, 8, dtype=np.float32)[LABELS]
STEPS = 30


def loss(params: Any, x: Any) -> Any:
    scores = jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean()


def parameters() -> Any:
    return {"b": jnp.zeros(16), "v": weight(16, 3, 2), "w": weight(8, 16)}


OPTIMIZERS = {
    "adamw": partial(optax.adamw, 1e-2),
    "MultiSteps": lambda: optax.MultiSteps(optax.adamw(2e-2), every_k_schedule=2),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adamw(1e-2), 3),
    "inject_hyperparams": partial(
        optax.inject_hyperparams(optax.adamw),
        optax.linear_schedule(2e-2, 5e-3, STEPS),
    ),
}


class Trained(NamedTuple):
    """A run of training.

    Attributes:
        losses: The loss of each step.
        params: The parameters after it.
        state: The state of the optimizer after it.
        step: The jitted step.
    """

    losses: list[float]
    params: Any
    state: Any
    step: Any


@cache
def trained(name: str, *, converts: bool) -> Trained:
    optimizer = OPTIMIZERS[name]()
    function = amprewrite.convert(loss) if converts else loss

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(function)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params, losses = parameters(), []
    state = optimizer.init(params)
    for _ in range(STEPS):
        params, state, value = step(params, state, X)
        losses.append(float(value))
    return Trained(losses, params, state, step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loss_follows_float32_and_the_state_is_float32(name: str) -> None:
    found, expected = trained(name, converts=True), trained(name, converts=False)
    assert found.losses[-1] < 0.6 * found.losses[0]
    assert found.losses != expected.losses
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0.02)
    kept = (found.params, found.state)
    assert {str(x.dtype) for x in floats(kept)} == {"float32"}
    assert not full_contractions(jax.make_jaxpr(found.step)(*kept, X))


def test_a_step_that_is_not_finite_is_skipped_by_apply_if_finite() -> None:
    _, params, state, step = trained("apply_if_finite", converts=True)
    after, skipped, _ = step(params, state, X.at[0].set(jnp.inf))
    assert skipped.total_notfinite == 1
    before = jax.tree.leaves((params, state.inner_state))
    for old, new in zip(
        before, jax.tree.leaves((after, skipped.inner_state)), strict=True
    ):
        np.testing.assert_array_equal(old, new)


def test_hyperparameters_of_the_state_are_those_of_float32() -> None:
    found, expected = (
        trained("inject_hyperparams", converts=c).state.hyperparams
        for c in (True, False)
    )
    assert found == expected
    assert 0.005 < float(found["learning_rate"]) < 0.006


def test_a_step_that_is_converted_as_a_whole_keeps_its_optimizer_full() -> None:
    plain, params = trained("adamw", converts=False).step, parameters()
    state = OPTIMIZERS["adamw"]().init(params)
    plan = amprewrite.inspect(plain, args=(params, state, X))
    lowered = [d for d in plan.decisions if d.precision == "bfloat16"]
    assert sum(d.native == "dot_general" for d in lowered) == 5
    assert len({d.source for d in lowered}) == 1  # the line of both contractions
    full = [d.native for d in plan.decisions if d.precision == "float32"]
    assert full.count("sqrt") == len(params)
