"""Training states of linen, its lifted transformations, and training of NNX."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

from flax.training.train_state import TrainState

import amprewrite
from tests.jax_programs import floats, full_contractions, normal, relative_error

X, LABELS, KEY = normal(16, 8), np.arange(16) % 3, jax.random.key(0)
STEPS = 8


def cross_entropy(scores: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean()


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:  # noqa: FBT001  # static for remat
        hidden = nn.gelu(nn.Dense(16)(x))
        return x + nn.Dense(8)(nn.Dropout(0.1, deterministic=not train)(hidden))


class Network(nn.Module):
    """Three layers by ``nn.scan``, computed again in the backward pass; batch norm."""

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:  # noqa: FBT001
        def turn(layer: Any, held: Any, _: Any) -> Any:
            return layer(held, train), None

        stack = nn.scan(
            turn,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=3,
        )
        held, _ = stack(nn.remat(Layer, static_argnums=(2,))(), x, None)
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(held))


class State(TrainState):
    batch_stats: Any


def train_linen(model: Any) -> tuple[list[float], Any, Any]:
    variables = jax.jit(model.init, static_argnums=2)(KEY, X, False)
    state = State.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax.adam(1e-2),
        batch_stats=variables["batch_stats"],
    )

    @jax.jit
    def step(state: Any) -> Any:
        def loss(params: Any) -> Any:
            scores, changed = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                X,
                True,
                mutable=["batch_stats"],
                rngs={"dropout": jax.random.fold_in(KEY, state.step)},
            )
            return cross_entropy(scores), changed["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=stats), value

    losses = []
    for _ in range(STEPS):
        state, value = step(state)
        losses.append(float(value))
    return losses, state, step


def test_a_train_state_with_scan_remat_dropout_and_batch_norm() -> None:
    found, state, step = train_linen(amprewrite.convert(Network()))
    expected, plain, _ = train_linen(Network())
    assert found[-1] < 0.9 * found[0]
    assert found != expected
    np.testing.assert_allclose(found, expected, rtol=0.02)
    assert state.step == STEPS
    assert relative_error(state.batch_stats, plain.batch_stats) < 0.02
    assert {str(x.dtype) for x in floats(state)} == {"float32"}
    assert not full_contractions(jax.make_jaxpr(step)(state))


class Normed(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.gelu(self.norm(self.first(x)))))


def train_nnx(model: Any, way: str) -> tuple[Any, Any]:
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(
        loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy()
    )
    held = (model, optimizer, metrics)

    def step(model: Any, optimizer: Any, metrics: Any) -> None:
        def loss(model: Any) -> Any:
            scores = model(X)
            return cross_entropy(scores), scores

        (value, scores), grads = nnx.value_and_grad(loss, has_aux=True)(model)
        metrics.update(loss=value, logits=scores, labels=LABELS)
        optimizer.update(model, grads)

    if way == "nnx.jit":
        jitted = nnx.jit(step)
        for _ in range(STEPS):
            jitted(*held)
    else:  # nnx.split and nnx.merge
        graph, state = nnx.split(held)

        @jax.jit
        def pure(state: Any) -> Any:
            merged = nnx.merge(graph, state)
            step(*merged)
            return nnx.state(merged)

        for _ in range(STEPS):
            state = pure(state)
        held = nnx.merge(graph, state)
    return held[0], held[2].compute()


def test_nnx_trains_under_its_own_jit_and_as_a_pure_step() -> None:
    model, metrics = train_nnx(amprewrite.convert(Normed()), "nnx.jit")
    plain, expected = train_nnx(Normed(), "nnx.jit")
    pure, again = train_nnx(amprewrite.convert(Normed()), "pure")
    assert metrics["loss"] == again["loss"] != expected["loss"]
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=0.02)
    assert abs(metrics["accuracy"] - expected["accuracy"]) < 0.05
    state = nnx.state(model, nnx.Param, nnx.BatchStat)
    assert {str(x.dtype) for x in floats(state)} == {"float32"}
    for one in (model, plain, pure):
        one.eval()
    assert (model(X) == pure(X)).all()
    assert 1e-4 < relative_error(model(X), plain(X)) < 0.05
