"""Random small torch programs: compositions of well-behaved ops on ``[4, 16]``."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

from tests.torch_programs import Program

WIDTH = 16

Step = tuple[str, int, int]
"""Name of an op, and which of the values so far are its operands."""

OPS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda _, a, b: a + b,
    "attend": lambda _, a, b: F.scaled_dot_product_attention(a[None], b[None], b[None])[
        0
    ],
    "cat": lambda _, a, b: torch.cat([a, b], -1)[:, ::2],
    "first": lambda m, a, _: m.first(a),
    "gelu": lambda _, a, __: F.gelu(a),
    "in_place": lambda _, a, b: a.clone().mul_(0.5).add_(b),
    "lstm": lambda m, a, _: m.lstm(a)[0],
    "mean": lambda _, a, b: a + b.mean(-1, keepdim=True),
    "mul": lambda _, a, b: a * torch.sigmoid(b),
    "norm": lambda m, a, _: m.norm(a),
    "pick": lambda _, a, b: torch.where(a > 0, a, b),
    "second": lambda m, a, _: m.second(a),
    "softmax": lambda _, a, __: torch.softmax(a, -1),
    "split": lambda _, a, __: torch.cat(a.chunk(2, -1)[::-1], -1),
    "square": lambda _, a, b: a + (b * b).mean(-1, keepdim=True),
    "tied": lambda m, a, _: F.linear(a, m.first.weight.t()),
    "turn": lambda _, a, __: a.t().reshape(4, WIDTH),
}
"""Each takes the module and two values, and makes one of the same shape."""


def programs() -> st.SearchStrategy[tuple[Step, ...]]:
    """Return a strategy of programs that hold at least one product."""
    index = st.integers(0, 5)
    step = st.tuples(st.sampled_from(sorted(OPS)), index, index)
    steps = st.lists(step, min_size=1, max_size=7)
    return steps.map(lambda found: (("first", 0, 0), *found))


def build(steps: tuple[Step, ...]) -> nn.Module:
    """Return the module that runs ``steps``; it hands back the last two values."""

    def forward(m: Any, x: Any) -> Any:
        values = [x]
        for name, one, two in steps:
            a, b = values[-1 - one % len(values)], values[-1 - two % len(values)]
            values.append(OPS[name](m, a, b))
        return {"last": values[-1], "all": (values[-2], len(steps))}

    torch.manual_seed(0)
    parts = {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH)}
    parts |= {"norm": nn.LayerNorm(WIDTH), "lstm": nn.LSTM(WIDTH, WIDTH)}
    return Program(forward, **parts).eval()


def inputs() -> tuple[torch.Tensor]:
    """Return the arguments of every program."""
    return (torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)),)
