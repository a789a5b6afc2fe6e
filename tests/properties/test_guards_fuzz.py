"""Random programs with guards: finite wherever full precision is, in both frameworks.

Values and gradients are those of full precision but for roundings. Each seed takes one
placement and one of two precisions.
"""

from functools import partial
from typing import Any

import pytest

import amprewrite
from tests.fuzzing import seeds
from tests.properties.guard_programs import Formula, Names, arguments, program

PLACEMENTS = ("promote", "optimal", "paint")

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.filterwarnings("ignore:rewritten 0 of"),
    pytest.mark.filterwarnings("ignore:training in float16"),
    pytest.mark.filterwarnings("ignore:the result in float16"),
    pytest.mark.filterwarnings("ignore::amprewrite.errors.OverflowWarning"),
]


def way(seed: int) -> dict[str, Any]:
    """Return the placement of a seed, at prices by which low pays."""
    placement = PLACEMENTS[seed % len(PLACEMENTS)]
    return {
        "placement": placement,
        "device": "cuda" if placement == "optimal" else None,
    }


def check(full: Any, low: Any, size: float, words: str) -> None:
    """Compare an array with one of low precision, where the full one is finite."""
    import numpy as np  # beside one framework

    full, low = np.asarray(full, np.float64), np.asarray(low, np.float64)
    finite = np.isfinite(full) & (np.abs(full) < size)
    assert np.isfinite(low[finite]).all(), (words, full, low)
    error = np.abs(full - low)[finite].max(initial=0)
    assert error <= 0.05 * np.abs(full[finite]).max(initial=1), (words, full, low)


@pytest.mark.parametrize("seed", seeds(24, 1500))
def test_torch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    names = Names(
        torch.clamp,
        torch.where,
        torch.full_like,
        lambda name: (
            partial(torch.softmax, dim=-1)
            if name == "softmax"
            else getattr(torch, name)
        ),
    )
    policy, words, formula = program(seed)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(arguments(seed)[1]))

        def forward(self, x: Any) -> Any:
            return formula(names, x @ self.w, x)

    model = Model()
    x = torch.tensor(arguments(seed)[0])
    low = amprewrite.convert(Model(), policy, args=(x,), **way(seed))
    results = [run(x) for run in (model, low)]
    full, rounded = (y.detach() for y in results)
    check(full, rounded, 1e30, words)
    slope, rounded = (
        torch.autograd.grad(y.sum(), m.w)[0]
        for y, m in zip(results, (model, low), strict=True)
    )
    check(slope, rounded, limit(policy), words)


@pytest.mark.parametrize("seed", seeds(8, 500))
def test_jax(seed: int) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    others = {
        "softmax": jax.nn.softmax,
        "rsqrt": jax.lax.rsqrt,
        "acos": jnp.arccos,
        "acosh": jnp.arccosh,
        "atanh": jnp.arctanh,
    }
    names = Names(
        jnp.clip,
        jnp.where,
        jnp.full_like,
        lambda name: others[name] if name in others else getattr(jnp, name),
    )
    policy, words, formula = program(seed)
    x, w = map(jnp.asarray, arguments(seed))
    convert = partial(amprewrite.convert, policy=policy, **way(seed))

    def total(w: Any, formula: Formula = formula) -> Any:
        return formula(names, x @ w, x).sum()

    both = jax.value_and_grad(total)
    full, slope = both(w)
    low, low_slope = convert(both)(w)
    check(full, low, 1e30, words)
    check(slope, low_slope, limit(policy), words)
    check(slope, jax.grad(convert(total))(w), limit(policy), words)


def limit(policy: str) -> float:
    """Return the size of the gradients that a low product can pass on."""
    return 1e3 if policy == "fp16" else 1e30
