"""One program, written once for both frameworks: the same policy, the same classes."""

import math
from typing import Any

import numpy as np
import pytest

import amprewrite
from amprewrite.plan import Decision, Plan

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY = 32, 4, 2, 8, 50

STRUCTURE = frozenset(
    ("cast", "expand", "reshape", "permute", "squeeze", "unsqueeze", "clone", "view")
)
"""Data movement, which each framework writes in its own places."""


def weights() -> dict[str, Any]:
    """Return the weights of a small decoder, as NumPy arrays."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        scale = 1 / math.sqrt(shape[0])
        return (generator.normal(size=shape) * scale).astype(np.float32)

    found = {"embed": normal(VOCABULARY, WIDTH) * 5, "head": normal(WIDTH, VOCABULARY)}
    for layer in range(LAYERS):
        for name, shape in (
            ("qkv", (WIDTH, 3 * WIDTH)),
            ("out", (WIDTH, WIDTH)),
            ("up", (WIDTH, 4 * WIDTH)),
            ("down", (4 * WIDTH, WIDTH)),
        ):
            found[f"{name}{layer}"] = normal(*shape)
            found[f"{name}{layer}_bias"] = normal(1, shape[1])[0]
        for name in ("first", "second"):
            found[f"{name}{layer}"] = np.ones(WIDTH, np.float32)
    return found


def norm(xp: Any, x: Any, scale: Any) -> Any:
    variance = xp.mean(x * x, -1)[..., None]
    return x * (1 / xp.sqrt(variance + 1e-6)) * scale


def softmax(xp: Any, x: Any) -> Any:
    powers = xp.exp(x - xp.amax(x, -1)[..., None])
    return powers / xp.sum(powers, -1)[..., None]


def decoder(xp: Any, p: Any, ids: Any, mask: Any) -> Any:
    """Return logits; only operations that both namespaces have."""
    x = p["embed"][ids]
    for layer in range(LAYERS):
        y = norm(xp, x, p[f"first{layer}"])
        qkv = xp.matmul(y, p[f"qkv{layer}"]) + p[f"qkv{layer}_bias"]
        parts = xp.reshape(qkv, (*qkv.shape[:2], 3, HEADS, WIDTH // HEADS))
        q, k, v = (xp.swapaxes(parts[:, :, i], 1, 2) for i in range(3))
        scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * (WIDTH // HEADS) ** -0.5
        attended = xp.matmul(softmax(xp, scores + mask), v)
        joined = xp.reshape(xp.swapaxes(attended, 1, 2), x.shape)
        x = x + xp.matmul(joined, p[f"out{layer}"]) + p[f"out{layer}_bias"]
        y = norm(xp, x, p[f"second{layer}"])
        y = xp.tanh(xp.matmul(y, p[f"up{layer}"]) + p[f"up{layer}_bias"])
        x = x + xp.matmul(y, p[f"down{layer}"]) + p[f"down{layer}_bias"]
    return xp.matmul(x, p["head"])


class Decoder(torch.nn.Module):
    """The decoder as a module of torch."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in weights().items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value)))

    def forward(self, ids: Any, mask: Any) -> Any:
        return decoder(torch, dict(self.named_parameters()), ids, mask)


def plans(policy: str) -> tuple[Plan, Plan]:
    ids = np.arange(2 * LENGTH).reshape(2, LENGTH) % VOCABULARY
    mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    tensors = (torch.tensor(ids), torch.tensor(mask))
    of_torch = amprewrite.inspect(Decoder().train(), policy, args=tensors)
    arrays = (jax.tree.map(jnp.asarray, weights()), jnp.asarray(ids), jnp.asarray(mask))

    def function(p: Any, ids: Any, mask: Any) -> Any:
        return decoder(jnp, p, ids, mask)

    return of_torch, amprewrite.inspect(function, policy, args=arrays)


def computing(plan: Plan) -> dict[str, list[Decision]]:
    """Return the ops that compute, by canonical name, in program order."""
    found: dict[str, list[Decision]] = {}
    for decision in plan.decisions:
        floats = any(d in ("float32", "bfloat16") for d in decision.results)
        if floats and decision.canonical not in STRUCTURE:
            found.setdefault(decision.canonical, []).append(decision)
    return found


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_paired_ops_have_the_same_class(policy: str) -> None:
    left, right = map(computing, plans(policy))
    pairs = [
        (a, b)
        for name in left.keys() & right.keys()
        for a, b in zip(left[name], right[name], strict=False)
    ]
    same = [a.op_class == b.op_class for a, b in pairs]
    differ = {(a.canonical, a.op_class, b.op_class) for a, b in pairs if a != b}
    assert len(pairs) > 40
    assert sum(same) >= 0.95 * len(same), differ


def test_contractions_are_low_in_both() -> None:
    for plan in plans("bf16"):
        found = [d for d in plan.decisions if d.canonical == "matmul"]
        assert len(found) == 6 * LAYERS + 1
        assert {d.precision for d in found} == {"bfloat16"}
