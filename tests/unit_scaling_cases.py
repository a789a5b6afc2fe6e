"""Calls of every scaled op, for the tests of both frameworks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One call: shapes of its inputs, and what is known of its scales.

    Attributes:
        op: Name of the function.
        shapes: Shapes of the differentiable inputs.
        options: Keyword arguments.
        scales: Whether it takes ``mult`` and has a rule for each.
        free: Whether it takes ``constraint=None``.
        rms: Whether scale means root mean square, not standard deviation.
        forward: Scale of the output; None where it is no matter, as of a loss.
        classes: Extent of integers for a last argument, of the shape after it.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, object] = field(default_factory=dict)
    scales: bool = False
    free: bool = True
    rms: bool = False
    forward: float | None = 1.0
    integers: tuple[int, tuple[int, ...]] | None = None
    first: bool = False

    @property
    def name(self):
        return "-".join([self.op, *(f"{k}={v}" for k, v in self.options.items())])

    def mults(self):
        """The multipliers to try."""
        return (0.25, 1.0, 4.0) if self.scales else (1.0,)

    def arguments(self, seed=0):
        """Unit Gaussian inputs, then integers if it takes any (before, if first)."""
        rng = np.random.default_rng(seed)
        made: list[Any] = [
            rng.standard_normal(s, dtype=np.float32) for s in self.shapes
        ]
        if self.integers:
            high, shape = self.integers
            whole = rng.integers(0, high, shape)
            made.insert(0 if self.first else len(made), whole)
        return made

    def keywords(self, mult):
        """Keyword arguments for a multiplier, without a constraint."""
        more = {"mult": mult} if self.scales else {}
        return {**self.options, **more, **({"constraint": None} if self.free else {})}


UNARY = (
    *("gelu", "silu", "relu", "relu6", "leaky_relu", "hardtanh", "hardsigmoid"),
    *("hardswish", "tanh", "sigmoid", "elu", "softplus", "mish"),
)
GATED = ("silu_glu", "gelu_glu", "relu_glu", "sigmoid_glu", "tanh_glu")


def cases(n):
    """Every scaled op, on tensors of about n**2 elements; n is a power of two."""
    heads = (n * n // 16 // 16, 16, 16)  # (batch, rows, width)
    wide = (n * n // 64 // 64 or 1, 64, 64)
    seen = wide if n >= 256 else heads
    line, image = (16, n // 16, n), (16, n // 16, n // 16, n // 16)
    attention = "scaled_dot_product_attention"
    return [
        *(Case(op, ((n, n),), scales=True) for op in UNARY),
        Case("gelu", ((n, n),), {"approximate": "tanh"}, scales=True),
        Case("elu", ((n, n),), {"alpha": 0.5}, scales=True),
        Case("leaky_relu", ((n, n),), {"negative_slope": 0.3}, scales=True),
        *(Case(op, ((n, n), (n, n)), scales=True, rms=True) for op in GATED),
        Case("softmax", ((n, n),), scales=True, rms=True),
        Case("softmax", ((n * n // 16, 16),), scales=True, rms=True),
        Case(attention, (seen,) * 3, scales=True, rms=True),
        Case(attention, (seen,) * 3, {"is_causal": True}, scales=True, rms=True),
        Case("linear", ((n, n), (n // 2, n))),
        Case("linear_readout", ((n, n), (n // 2, n)), forward=n**-0.5),
        Case("matmul", ((4, n // 2, n), (n, n // 4))),
        Case("conv1d", (line, (n // 8, n // 16, 3)), {"padding": 1}),
        Case(
            "conv1d",
            (line, (n // 8, n // 32, 4)),
            {"stride": 2, "groups": 2, "dilation": 2},
        ),
        Case("conv2d", (image, (n // 8, n // 16, 3, 3))),
        Case("layer_norm", ((n, n),), {"normalized_shape": (n,)}, free=False),
        Case("rms_norm", ((n, n),), {"normalized_shape": (n,)}, free=False),
        Case("add", ((n, n), (n, n))),
        Case("add", ((n, 4, n // 4), (n, 1, n // 4))),
        Case(
            "embedding",
            ((n, n // 2),),
            free=False,
            forward=None,
            integers=(n, (n * n // 4,)),
            first=True,
        ),
        Case(
            "cross_entropy",
            ((n, n),),
            scales=True,
            free=False,
            rms=True,
            forward=None,
            integers=(n, (n,)),
        ),
        Case("mse_loss", ((n, n), (n, n)), free=False, forward=None),
    ]
