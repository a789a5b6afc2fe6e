"""Checkpoints of Orbax between converted models, and between these and plain ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")

import amprewrite
from tests.jax_programs import floats, normal

X = normal(16, 8)
OPTIMIZER = optax.sgd(1e-2, momentum=0.9)


class Kind(NamedTuple):
    """A library whose models are saved.

    Attributes:
        build: Returns a plain model, with the weights of a seed.
        split: Returns the arrays of a model, and a function that puts others in.
        run: Calls a model that arrays were put into.
    """

    build: Callable[[int], Any]
    split: Callable[[Any], tuple[Any, Callable[[Any], Any]]]
    run: Callable[[Any], Any]


def equinox() -> Kind:
    eqx = pytest.importorskip("equinox")

    def split(model: Any) -> Any:
        arrays, rest = eqx.partition(model, eqx.is_array)
        return arrays, lambda arrays: eqx.combine(arrays, rest)

    def build(seed: int) -> Any:
        return eqx.nn.MLP(8, 3, 16, 1, key=jax.random.key(seed))

    return Kind(build, split, lambda model: jax.vmap(model)(X))


def linen() -> Kind:
    nn = pytest.importorskip("flax.linen")

    def split(model_of_seed: Any) -> Any:
        model, seed = model_of_seed
        variables = model.init(jax.random.key(seed), X)
        return variables, lambda variables: (model, variables)

    def build(seed: int) -> Any:
        return nn.Sequential([nn.Dense(16), nn.gelu, nn.Dense(3)]), seed

    return Kind(build, split, lambda bound: bound[0].apply(bound[1], X))


def nnx() -> Kind:
    nnx = pytest.importorskip("flax.nnx")

    def split(model: Any) -> Any:
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        return params, lambda params: nnx.merge(graph, params, rest)

    def build(seed: int) -> Any:
        rngs = nnx.Rngs(seed)
        layers = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)
        return nnx.Sequential(layers[0], nnx.gelu, layers[1])

    return Kind(build, split, lambda model: model(X))


def converted(kind: Kind, seed: int) -> Any:
    """Return a converted model; of linen with its seed."""
    model = kind.build(seed)
    if isinstance(model, tuple):
        return amprewrite.convert(model[0]), model[1]
    return amprewrite.convert(model)


def stepper(kind: Kind, build: Any) -> Any:
    @jax.jit
    def step(params: Any, state: Any) -> Any:
        def loss(params: Any) -> Any:
            return (kind.run(build(params)) ** 2).mean()

        updates, state = OPTIMIZER.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    return step


def restored(path: Path, like: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return checkpointer.restore(path, shapes)


@pytest.mark.parametrize("library", [equinox, linen, nnx])
def test_training_goes_on_in_another_converted_model(
    library: Callable[[], Kind], tmp_path: Path
) -> None:
    kind = library()
    params, build = kind.split(converted(kind, 0))
    step = stepper(kind, build)
    params, state = step(*step(params, OPTIMIZER.init(params)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "both", {"params": params, "state": state})
        checkpointer.save(tmp_path / "params", params)

    other, other_build = kind.split(converted(kind, 1))
    like = {"params": other, "state": OPTIMIZER.init(other)}
    found = restored(tmp_path / "both", like)
    outputs = kind.run(build(params))
    assert (kind.run(other_build(found["params"])) == outputs).all()
    assert not (kind.run(other_build(other)) == outputs).all()
    assert {str(x.dtype) for x in floats(found)} == {"float32"}

    expected = step(params, state)
    after = stepper(kind, other_build)(found["params"], found["state"])
    for new, old in zip(floats(after), floats(expected), strict=True):
        np.testing.assert_array_equal(new, old)

    plain, plain_build = kind.split(kind.build(1))
    weights = restored(tmp_path / "params", plain)
    full = kind.run(plain_build(weights))
    assert 0 < np.abs(full - outputs).max() < 2**-6 * np.abs(full).max()
