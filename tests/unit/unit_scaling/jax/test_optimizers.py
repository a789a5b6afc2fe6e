"""Steps of the optimizers of optax, against those of torch and by hand."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
import numpy as np

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import optim_jax
from amprewrite.unit_scaling.optim_jax import adam, adamw, scale_by_mup, sgd

RNG = np.random.default_rng(0)
PARAMS = {
    "layer": {"w": RNG.standard_normal((3, 16)), "b": RNG.standard_normal(3)},
    "out": RNG.standard_normal((5, 16)),
}
PARAMS = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), PARAMS)
TYPES = {"layer": {"w": "weight", "b": "bias"}, "out": "output"}
DEPTHS = {"layer": 4, "out": 0}


def stepped(optimizer, steps=3):
    @jax.jit
    def step(params, state, number):
        grads = jax.tree.map(lambda p: jnp.cos(p * number), params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, optimizer.init(PARAMS)
    for number in range(1, steps + 1):
        params, state = step(params, state, number)
    return params


def in_torch(cls, **how):
    torch = pytest.importorskip("torch")
    from amprewrite.unit_scaling import optim

    kinds: Any = (
        (PARAMS["layer"]["w"], "weight", 4),
        (PARAMS["layer"]["b"], "bias", 4),
        (PARAMS["out"], "output", 0),
    )
    held = [
        optim.Parameter(torch.tensor(np.asarray(p)), kind, depth or None)
        for p, kind, depth in kinds
    ]
    optimizer = getattr(optim, cls)(held, **how)
    for number in range(1, 4):
        for p in held:
            p.grad = torch.cos(p.detach() * number)
        optimizer.step()
    return [p.detach().numpy() for p in held]


@pytest.mark.parametrize(
    ("made", "cls", "how"),
    [
        (adam(0.1, TYPES, depths=DEPTHS), "Adam", {"lr": 0.1}),
        *(
            (
                adamw(
                    0.1,
                    TYPES,
                    depths=DEPTHS,
                    weight_decay=0.03,
                    independent_weight_decay=independent,
                ),
                "AdamW",
                {
                    "lr": 0.1,
                    "weight_decay": 0.03,
                    "independent_weight_decay": independent,
                },
            )
            for independent in (True, False)
        ),
        (
            sgd(0.1, TYPES, depths=DEPTHS, readout_constraint="to_output_scale"),
            "SGD",
            {"lr": 0.1, "readout_constraint": "to_output_scale"},
        ),
        (
            sgd(0.1, TYPES, depths=DEPTHS, momentum=0.9),
            "SGD",
            {"lr": 0.1, "momentum": 0.9},
        ),
    ],
)
def test_steps_are_those_of_torch(made, cls, how):
    found = stepped(made)
    wanted = in_torch(cls, **how)
    trio = (found["layer"]["w"], found["layer"]["b"], found["out"])
    for one, two in zip(trio, wanted, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)


def test_a_type_for_a_subtree():
    made = scale_by_mup({"layer": "weight", "out": "output"})
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    updates: Any = made.update(ones, made.init(PARAMS))[0]
    assert updates["layer"]["w"][0, 0] == 0.25
    np.testing.assert_allclose(updates["layer"]["b"], 3**-0.5, rtol=1e-6)
    assert updates["out"][0, 0] == 1


def test_mistakes():
    with pytest.raises(UnitScalingError, match="types is no tree like the parameters"):
        scale_by_mup({"layer": "weight"}).init(PARAMS)
    with pytest.raises(UnitScalingError, match="found 'kernel'; want one of"):
        scale_by_mup("kernel").init(PARAMS)
    with pytest.raises(UnitScalingError, match="found a schedule; want a number"):
        adamw(lambda _: 0.1, TYPES)  # pyright: ignore[reportArgumentType]


def test_the_public_module():
    assert optim_jax.adamw is adamw
