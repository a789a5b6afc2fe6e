"""Calls with rules of their own: jit, checkpoints, custom derivatives, transforms."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from tests.jax_programs import Case, keeps_its_promises, normal, weight

pytestmark = pytest.mark.usefixtures("strict_jax")

X = normal(4, 16)
W = weight(16, 16)
V = weight(16, 16, seed=2)


@jax.jit
def layer(w, x):
    return jax.nn.gelu(x @ w)


def plain(w, x):
    return jax.nn.softmax(jnp.tanh(x @ w) * 2.0) @ w


def nested_jits(w, x):
    return jax.jit(lambda w, x: layer(w, layer(w, x)))(w, x) + 1.0


def shared_jit(w, v, x):
    return layer(v, layer(w, x)) + layer(w, x)


def donating(w, x):
    return jax.jit(lambda w, x: jnp.tanh(x @ w), donate_argnums=1)(w, x * 2) @ w


def block(w, v, x):
    h = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return jax.nn.softmax(h @ v)


def remat(w, v, x, **options):
    return jax.checkpoint(block, **options)(w, v, x) @ w


def remat_in_scan_in_jit(w, v, x):
    policy = jax.checkpoint_policies.save_only_these_names("hidden")

    @partial(jax.checkpoint, policy=policy)
    def turn(h, _):
        return block(w, v, h), None

    return jax.jit(lambda x: lax.scan(turn, x, None, length=2)[0])(x)


def remat_of_an_input(w, x):
    return jax.checkpoint(lambda x: (x, x @ w, 1.0))(x)


@jax.custom_jvp
def smooth(x, w):
    return jnp.log1p(jnp.exp(x @ w))


@smooth.defjvp
def _smooth_jvp(primals, tangents):
    x, w = primals
    dx, dw = tangents
    return smooth(x, w), jax.nn.sigmoid(x @ w) * (dx @ w + x @ dw)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(function, x):
    return function(x) * 2.0


@applied.defjvp
def _applied_jvp(function, primals, tangents):
    return applied(function, *primals), 2.0 * jnp.cos(primals[0]) * tangents[0]


@jax.custom_jvp
def counted(x, w):
    return x @ w, jnp.argmax(x, -1)


@counted.defjvp
def _counted_jvp(primals, tangents):
    value, index = counted(*primals)
    zero = np.zeros(index.shape, jax.dtypes.float0)
    return (value, index), (tangents[0] @ primals[1] + primals[0] @ tangents[1], zero)


@jax.custom_jvp
def with_symbols(x, w):
    return x @ w


def _with_symbols_jvp(primals, tangents):
    x, w = primals
    parts = [jnp.zeros((*x.shape[:-1], w.shape[-1]))]
    if not isinstance(tangents[0], SymbolicZero):
        parts.append(tangents[0] @ w)
    if not isinstance(tangents[1], SymbolicZero):
        parts.append(x @ tangents[1])
    return x @ w, sum(parts)


with_symbols.defjvp(_with_symbols_jvp, symbolic_zeros=True)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def clipped(_size, x, w):
    return jnp.tanh(x @ w)


def _clipped_forward(size, x, w):
    y = clipped(size, x, w)
    return y, (x, w, y)


def _clipped_backward(size, kept, g):
    x, w, y = kept
    assert {x.dtype, w.dtype, y.dtype, g.dtype} == {jnp.dtype("float32")}
    d = jnp.clip(g, -size, size) * (1 - y * y)
    return d @ w.T, x.T @ d


clipped.defvjp(_clipped_forward, _clipped_backward)


@jax.custom_vjp
def with_vjp_symbols(x, w):
    return x @ w


def _symbols_forward(x, w):
    perturbed = (x.perturbed, w.perturbed)
    x, w = x.value, w.value
    return x @ w, (x if perturbed[1] else None, w if perturbed[0] else None)


def _symbols_backward(kept, g):
    x, w = kept
    if isinstance(g, SymbolicZero):
        g = jnp.zeros(g.shape, jnp.float32)
    return (None if w is None else g @ w.T), (None if x is None else x.T @ g)


with_vjp_symbols.defvjp(_symbols_forward, _symbols_backward, symbolic_zeros=True)


@jax.custom_vjp
def with_integers(x, w, index):
    return x[index] @ w


def _integers_forward(x, w, index):
    return with_integers(x, w, index), (x, w, index)


def _integers_backward(kept, g):
    x, w, index = kept
    return jnp.zeros_like(x).at[index].add(g @ w.T), x[index].T @ g, None


with_integers.defvjp(_integers_forward, _integers_backward)


@jax.custom_vjp
def structured(tree):
    return {"y": tree["x"] @ tree["w"], "none": None}


def _structured_forward(tree):
    return structured(tree), tree


def _structured_backward(tree, g):
    return ({"x": g["y"] @ tree["w"].T, "w": tree["x"].T @ g["y"]},)


structured.defvjp(_structured_forward, _structured_backward)


@jax.custom_gradient
def doubled(x):
    return x * 2.0, lambda g: g * 3.0


def rule_in_a_rule(x, w):
    return applied(jnp.sin, smooth(clipped(0.5, x, w), w)) @ w


def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w) @ w) ** 2)


def hessian(w, x):
    return jax.hessian(lambda s: loss(w * s, x))(jnp.ones(16))


def linearized(w, x):
    y, push = jax.linearize(lambda x: jnp.tanh(x @ w), x)
    return y, push(jnp.cos(x))


def pushed(w, x):
    return jax.jvp(lambda x: jax.nn.softmax(x @ w), (x,), (jnp.cos(x),))


def pulled(w, x):
    y, pull = jax.vjp(lambda w: jax.nn.relu(x @ w), w)
    return y, pull(y)


def per_example(w, x):
    return jax.vmap(jax.grad(loss), (None, 0))(w, x[:, None])


def jacobians(w, x):
    return jax.jacfwd(lambda s: jnp.tanh(s @ w))(x[0]), jax.jacrev(
        lambda s: jnp.tanh(s @ w)
    )(x[0])


POLICIES = jax.checkpoint_policies
CASES = {
    "plain": Case(plain, (W, X)),
    "nested jit": Case(nested_jits, (W, X)),
    "jit called thrice": Case(shared_jit, (W, V, X)),
    "jit that donates": Case(donating, (W, X)),
    "remat": Case(remat, (W, V, X)),
    "remat that keeps a name": Case(
        partial(remat, policy=POLICIES.save_only_these_names("hidden")), (W, V, X)
    ),
    "remat that keeps contractions": Case(
        partial(remat, policy=POLICIES.dots_saveable), (W, V, X)
    ),
    "remat that keeps all": Case(
        partial(remat, policy=POLICIES.everything_saveable), (W, V, X)
    ),
    "remat in scan in jit": Case(remat_in_scan_in_jit, (W, V, X)),
    "remat that hands on": Case(remat_of_an_input, (W, X)),
    "custom_jvp": Case(smooth, (X, W)),
    "custom_jvp of a function": Case(lambda x: applied(jnp.sin, x) @ W, (X,)),
    "custom_jvp with integers": Case(lambda x, w: counted(x, w)[0] @ w, (X, W)),
    "custom_jvp with symbols": Case(
        lambda x, w: with_symbols(jnp.tanh(x @ w), W), (X, W)
    ),
    "relu": Case(lambda x, w: jax.nn.relu(x @ w) @ w, (X, W)),
    "custom_vjp": Case(lambda x, w: clipped(0.5, jnp.tanh(x @ w), w) @ w, (X, W)),
    "custom_vjp with symbols": Case(
        lambda x, w: with_vjp_symbols(jnp.tanh(x @ w), W), (X, W)
    ),
    "custom_vjp with integers": Case(
        with_integers, (X, W, jnp.array([0, 2, 2])), vmap=False
    ),
    "custom_vjp of trees": Case(structured, ({"x": X, "w": W},)),
    "custom_gradient": Case(lambda x, w: doubled(x @ w) @ w, (X, W)),
    "rules in rules": Case(rule_in_a_rule, (X, W)),
    "hessian": Case(hessian, (W, X), sums=True),
    "linearize": Case(linearized, (W, X)),
    "jvp": Case(pushed, (W, X)),
    "vjp": Case(pulled, (W, X)),
    "vmap of grad": Case(per_example, (W, X)),
    "jacobians": Case(jacobians, (W, X)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_construct_keeps_its_promises(name):
    keeps_its_promises(CASES[name])
