"""One network in torch and in JAX: the same factors, in each spelling."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax
from torch.nn import functional as F  # noqa: N812  # the usual name

import amprewrite

V, D, T, B = 20, 16, 6, 4
RNG = np.random.default_rng(0)
SHAPES = {
    "token": (V, D), "qkv": (3 * D, D), "out": (D, D), "gain": (D,),
    "up": (64, D), "down": (D, 64), "last": (V, D),
}  # fmt: skip
WEIGHTS = {
    name: np.ones(shape, np.float32)
    if len(shape) == 1
    else RNG.standard_normal(shape, dtype=np.float32)
    for name, shape in SHAPES.items()
}
TOKENS, TARGETS = RNG.integers(V, size=(2, B, T))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in WEIGHTS.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value)))

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.token)
        z = F.layer_norm(x, (D,), self.gain)
        q, k, v = F.linear(z, self.qkv).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
        x = x + F.linear(torch.softmax(scores, -1) @ v, self.out)
        x = x + F.linear(F.gelu(F.linear(x, self.up)), self.down)
        logits = F.linear(x, self.last)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain_norm(x, gain):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain


def other_norm(x, gain):
    mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
    return (x - mean) * (lax.rsqrt(square - mean * mean + 1e-5) * gain)


def plain_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def other_gelu(x):
    return x * (1 + lax.erf(x / math.sqrt(2))) / 2


def plain_loss(logits, targets):
    found = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(found, targets[..., None], -1).mean()


def other_loss(logits, targets):
    picked = (jax.nn.one_hot(targets, V) * logits).sum(-1)
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def network(norm, softmax, gelu, loss):
    def function(p, tokens, targets):
        x = p["token"][tokens]
        q, k, v = jnp.split(norm(x, p["gain"]) @ p["qkv"].T, 3, -1)
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / math.sqrt(D)
        x = x + softmax(scores) @ v @ p["out"].T
        x = x + gelu(x @ p["up"].T) @ p["down"].T
        return loss(x @ p["last"].T, targets)

    return function


def other_softmax(x):
    e = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def wanted():
    tokens, targets = torch.tensor(TOKENS), torch.tensor(TARGETS)
    scaled = amprewrite.unit_scale(Net(), (tokens, targets), init=False)
    loss = scaled(tokens, targets)
    loss.backward()
    return loss.item(), {n: p.grad.numpy() for n, p in scaled.named_parameters()}


SPELLINGS = {
    "library": network(plain_norm, jax.nn.softmax, plain_gelu, plain_loss),
    "written out": network(other_norm, other_softmax, other_gelu, other_loss),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values_and_gradients_are_those_of_torch(wanted, spelling):
    args = WEIGHTS, TOKENS, TARGETS
    scaled = amprewrite.unit_scale(SPELLINGS[spelling], args)
    loss, grads = jax.jit(jax.value_and_grad(scaled))(*args)
    assert float(loss) == pytest.approx(wanted[0], rel=1e-4)
    for name, gradient in wanted[1].items():
        off = np.abs(grads[name] - gradient).max() / np.abs(gradient).max()
        assert off < 1e-4, name
