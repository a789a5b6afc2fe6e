"""What devices add up of gradients under jit with shardings: float32, always."""

import re

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import amprewrite
from tests.jax_programs import normal, relative_error, weight

pytestmark = [
    pytest.mark.usefixtures("strict_jax"),
    pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices"),
]

SEPARATE = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
"""Compiles each reduction apart, so that its name tells what XLA widened for CPUs."""

BOUNDS = {"bf16": 2e-2, "fp16": 2e-3}
"""On the relative error of all gradients."""


def mlp(params, x):
    return jnp.mean((jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"]) ** 2)


def convolutions(params, x):
    dims = ("NHWC", "HWIO", "NHWC")
    for name, stride, groups in (("first", 1, 1), ("second", 2, 4)):
        x = jnp.tanh(
            lax.conv_general_dilated(
                x,
                params[name],
                (stride, stride),
                "SAME",
                dimension_numbers=dims,
                feature_group_count=groups,
            )
        )
    return jnp.mean((x.mean((1, 2)) @ params["head"]) ** 2)


def block(x, params):
    h = x - x.mean(-1, keepdims=True)
    h = h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5)
    q, k, v = (
        part.reshape(*x.shape[:2], 2, 8)
        for part in jnp.split(h @ params["qkv"], 3, axis=-1)
    )
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    x = x + mixed @ params["out"]
    return x + jnp.tanh(x @ params["up"]) @ params["down"], None


def transformer(params, x):
    return jnp.mean(lax.scan(jax.checkpoint(block), x, params)[0] ** 2)


def drawn(shapes):
    """Layers of weights of unit gain, or one weight."""
    pairs = enumerate(shapes.items())
    return {
        name: normal(*shape, seed=seed, scale=np.prod(shape[-4:-1]) ** -0.5)
        for seed, (name, shape) in pairs
    }


COLUMNS, ROWS = P(None, None, "model"), P(None, "model", None)
MODELS = {
    "mlp": (
        mlp,
        {"up": weight(16, 32), "bias": normal(32), "down": weight(32, 8)},
        normal(16, 16),
        {"up": P(None, "model"), "bias": P("model"), "down": P("model", None)},
    ),
    "convolutions": (
        convolutions,
        drawn({"first": (3, 3, 3, 8), "second": (3, 3, 2, 8), "head": (8, 4)}),
        normal(16, 8, 8, 3),
        {
            "first": P(None, None, None, "model"),
            "second": P(None, None, None, "model"),
            "head": P("model", None),
        },
    ),
    "transformer": (
        transformer,
        {
            name: jnp.stack([weight(*shape, seed) for seed in range(2)])
            for name, shape in (
                ("qkv", (16, 48)),
                ("out", (16, 16)),
                ("up", (16, 32)),
                ("down", (32, 16)),
            )
        },
        normal(16, 4, 16),
        {"qkv": COLUMNS, "out": ROWS, "up": COLUMNS, "down": ROWS},
    ),
}


def placed(name, kind):
    """The parameters and the batch of a model on a mesh of eight devices."""
    _, params, x, specs = MODELS[name]
    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    if kind == "data":
        specs = dict.fromkeys(params, P())
    params = {
        name: jax.device_put(held, NamedSharding(mesh, specs[name]))
        for name, held in params.items()
    }
    over = P(("data", "model")) if kind == "data" else P("data")
    return params, jax.device_put(x, NamedSharding(mesh, over))


def reductions(compiled):
    """The dtypes that devices add up in; bf16 where XLA widened it for the CPU."""
    pattern = r"= (\(.*?\)|\S+) (?:all-reduce|reduce-scatter)(?:-start)?\((.*)"
    found = re.findall(pattern, compiled.as_text())
    return [
        "bf16" if "_promoted" in rest else dtype
        for shapes, rest in found
        for dtype in re.findall(r"(\w+)\[", shapes)
    ]


@pytest.mark.parametrize("policy", BOUNDS)
@pytest.mark.parametrize("kind", ["data", "tensor"])
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "convolutions",
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_reduced_in_full(name, kind, policy):
    function, plain_params, plain_x, _ = MODELS[name]
    given = placed(name, kind)
    gradient = jax.jit(jax.grad(amprewrite.convert(function, policy)))
    compiled = gradient.lower(*given).compile(SEPARATE)
    assert set(reductions(compiled)) == {"f32"}
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64),
            (plain_params, plain_x),
        )
        expected = jax.tree.map(np.asarray, jax.jit(jax.grad(function))(*wide))
    assert relative_error(compiled(*given), expected) < BOUNDS[policy]


@pytest.mark.parametrize(("low", "word"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_those_of_casts_by_hand_are_not(low, word):
    """Else the test above could not fail."""

    def by_hand(params, x):
        return mlp(*jax.tree.map(lambda leaf: leaf.astype(low), (params, x)))

    gradient = jax.jit(jax.grad(by_hand))
    compiled = gradient.lower(*placed("mlp", "data")).compile(SEPARATE)
    assert word in reductions(compiled)
