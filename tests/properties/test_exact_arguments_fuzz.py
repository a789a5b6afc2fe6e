"""Random chains of linear steps before an op that needs an exact argument.

The chain is float32 as a whole, and its codes and values are those of float32. With a
bent op between, the products before it are low.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from torch import nn
from torch.nn import functional

import amprewrite
from tests.fuzzing import seeds

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning"),
]
few = settings(
    max_examples=len(seeds(6, 150)),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
PLACEMENTS = st.sampled_from(("promote", "paint", "optimal"))
GENERATOR = torch.Generator().manual_seed(0)
MATRIX = torch.linalg.qr(torch.randn(8, 8, generator=GENERATOR))[0]
X = torch.randn(16, 8, generator=GENERATOR) * 30
KERNEL = torch.tensor([[[0.25, 0.5, 0.25]]])
BINS = torch.linspace(-200, 200, 1001)

Step = Callable[[Any, Any], Any]

TORCH: Mapping[str, Step] = {
    "product": lambda h, w: h @ w,
    "linear": functional.linear,
    "einsum": lambda h, w: torch.einsum("bi,ij->bj", h, w),
    "conv": lambda h, _: functional.conv1d(h[:, None], KERNEL, padding=1)[:, 0],
    "conv_transpose": lambda h, _: functional.conv_transpose1d(
        h[:, None], KERNEL, padding=1
    )[:, 0],
    "cumsum": lambda h, _: h.cumsum(0) / 4,
    "mean": lambda h, _: h - h.mean(-1, keepdim=True) / 2,
    "sum": lambda h, _: h + h.sum(0) / 16,
    "norm": lambda h, _: h + h.norm(dim=-1, keepdim=True) / 8,
    "cdist": lambda h, w: torch.cdist(h, w * 9),  # eight rows
    "max": lambda h, _: h - h.amax(-1, keepdim=True) / 2,
    "resample": lambda h, _: functional.interpolate(
        h[:, None], scale_factor=2.0, mode="linear"
    )[:, 0, ::2],
    "pool": lambda h, _: functional.avg_pool1d(h[:, None], 3, 1, 1)[:, 0],
    "fft": lambda h, _: torch.fft.rfft(h, n=14).imag * 0.5,
    "sort": lambda h, _: h.sort(-1).values,
    "clamp": lambda h, _: h.clamp(-150, 150),
    "roll": lambda h, _: h.roll(1, -1) - h / 3,
}
TORCH_READERS: Mapping[str, Callable[[Any], Any]] = {
    "sin": torch.sin,
    "exp": lambda h: torch.exp(1j * h).imag,
    "round": torch.round,
    "remainder": lambda h: h % 7,
    "long": lambda h: h.long(),
    "bucketize": lambda h: torch.bucketize(h.contiguous(), BINS),
}
TORCH_BENT: Mapping[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "softmax": lambda h: torch.softmax(h, -1),
    "layer_norm": lambda h: functional.layer_norm(h, h.shape[-1:]),
    "own norm": lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6),
    "own silu": lambda h: h * torch.sigmoid(h),
}

W, J = jnp.asarray(MATRIX.numpy()), jnp.asarray(X.numpy())
JAX: Mapping[str, Step] = {
    "product": lambda h, w: h @ w,
    "einsum": lambda h, w: jnp.einsum("bi,ij->bj", h, w),
    "conv": lambda h, _: lax.conv(
        h[:, None], jnp.asarray(KERNEL.numpy()), (1,), "SAME"
    )[:, 0],
    "cumsum": lambda h, _: jnp.cumsum(h, 0) / 4,
    "mean": lambda h, _: h - h.mean(-1, keepdims=True) / 2,
    "norm": lambda h, _: h + jnp.linalg.norm(h, axis=-1, keepdims=True) / 8,
    "max": lambda h, _: h - h.max(-1, keepdims=True) / 2,
    "scan": lambda h, w: lax.scan(lambda c, a: (c + a @ w, c), h[0], h)[1] / 4,
    "fori": lambda h, w: lax.fori_loop(0, 3, lambda _, c: c @ w + h / 4, h),
    "vmap": lambda h, w: jax.vmap(lambda a: a @ w)(h),
    "checkpoint": lambda h, w: jax.checkpoint(lambda a: a @ w)(h),
    "cond": lambda h, w: lax.cond(h[0, 0] > 0, lambda: h @ w, lambda: h @ w.T),
    "sort": lambda h, _: jnp.sort(h, -1),
    "clip": lambda h, _: jnp.clip(h, -150, 150),
}
JAX_READERS: Mapping[str, Callable[[Any], Any]] = {
    "sin": jnp.sin,
    "round": jnp.round,
    "mod": lambda h: jnp.mod(h, 7),
    "astype": lambda h: h.astype(int),
    "digitize": lambda h: jnp.digitize(h, jnp.asarray(BINS.numpy())),
}
JAX_BENT: Mapping[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "own norm": lambda h: h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6),
}


class Model(nn.Module):
    """A function of an input and of its matrix."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(MATRIX)

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight)


def chains(steps: Mapping[str, Step]) -> Any:
    return st.lists(st.sampled_from([*steps]), min_size=1, max_size=5)


def run(steps: Mapping[str, Step], chain: list[str], h: Any, w: Any) -> Any:
    for name in chain:
        h = steps[name](h, w)
    return h


def precisions(plan: Any) -> list[str]:
    return [d.precision for d in plan.decisions if d.op_class == "allow"]


@few
@given(chains(TORCH), st.sampled_from([*TORCH_READERS]), PLACEMENTS)
def test_a_torch_chain_is_exact(chain: list[str], reader: str, placement: str) -> None:
    model = Model(lambda x, w: TORCH_READERS[reader](run(TORCH, chain, x @ w, w)))
    converted: Any = amprewrite.convert(model.eval(), args=(X,), placement=placement)
    with torch.no_grad():
        found, wanted = converted(X).double(), model(X).double()
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert set(precisions(converted.plan)) == {"float32"}


@few
@given(chains(TORCH), st.sampled_from([*TORCH_BENT]), st.sampled_from([*TORCH_READERS]))
def test_a_torch_network_before_a_bend_is_low(
    chain: list[str], bent: str, reader: str
) -> None:
    def function(x: Any, w: Any) -> Any:
        h = TORCH_BENT[bent](torch.relu(x @ w) @ w)
        return TORCH_READERS[reader](run(TORCH, chain, h, w))

    plan = amprewrite.inspect(Model(function).eval(), args=(X,))
    assert precisions(plan)[:2] == ["bfloat16", "bfloat16"]


@few
@given(chains(JAX), st.sampled_from([*JAX_READERS]), PLACEMENTS)
def test_a_jax_chain_is_exact(chain: list[str], reader: str, placement: str) -> None:
    def function(x: Any, w: Any) -> Any:
        return JAX_READERS[reader](run(JAX, chain, x @ w, w))

    converted = amprewrite.convert(function, args=(J, W), placement=placement)
    found, wanted = converted(J, W) * 1.0, function(J, W) * 1.0
    assert jnp.linalg.norm(found - wanted) <= 1e-5 * jnp.linalg.norm(wanted)
    assert set(precisions(converted.plan)) == {"float32"}


@few
@given(chains(JAX), st.sampled_from([*JAX_BENT]), st.sampled_from([*JAX_READERS]))
def test_a_jax_network_before_a_bend_is_low(
    chain: list[str], bent: str, reader: str
) -> None:
    def function(x: Any, w: Any) -> Any:
        h = JAX_BENT[bent](jax.nn.relu(x @ w) @ w)
        return JAX_READERS[reader](run(JAX, chain, h, w))

    plan = amprewrite.inspect(function, args=(J, W))
    assert precisions(plan)[:2] == ["bfloat16", "bfloat16"]
