"""Small programs by name, whose rewritten graphs are recorded."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name
from torch.utils.checkpoint import checkpoint

from tests.torch_programs import Program

Case = tuple[nn.Module, tuple[Any, ...]]
"""A model and the arguments it is called with."""

WIDTH = 8


def _linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def mlp() -> Case:
    """Two layers with a norm and a loss-like mean."""

    def forward(m: Any, x: Any) -> Any:
        return m.norm(m.second(F.gelu(m.first(x)))).mean(-1)

    parts = {"first": _linear(), "second": _linear(), "norm": nn.LayerNorm(WIDTH)}
    return Program(forward, **parts).eval(), (torch.randn(4, WIDTH),)


def attention() -> Case:
    """Attention by hand, with a mask of the least number."""

    def forward(m: Any, x: Any, keep: Any) -> Any:
        q, k, v = m.project(x).chunk(3, -1)
        mask = (1.0 - keep) * torch.finfo(torch.float32).min
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5 + mask
        return m.out(torch.softmax(scores, -1) @ v)

    model = Program(forward, project=nn.Linear(WIDTH, 3 * WIDTH), out=_linear())
    return model.eval(), (torch.randn(2, 4, WIDTH), torch.ones(2, 1, 4))


def fused_attention() -> Case:
    """torch's attention kernel, with a mask given as floats."""

    def forward(m: Any, x: Any, mask: Any) -> Any:
        q = m.project(x)[:, None]
        return m.out(F.scaled_dot_product_attention(q, q, q, attn_mask=mask))

    model = Program(forward, project=_linear(), out=_linear())
    return model.eval(), (torch.randn(2, 4, WIDTH), torch.zeros(2, 1, 4, 4))


def rms_norm() -> Case:
    """A norm with the guards that transformers writes."""

    def forward(m: Any, x: Any) -> Any:
        h = m.first(x)
        wide = h.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return m.second(m.scale * wide.to(h.dtype))

    parts = {"first": _linear(), "second": _linear()}
    scale = nn.Parameter(torch.ones(WIDTH))
    return Program(forward, **parts, scale=scale).eval(), (torch.randn(4, WIDTH),)


def rotary() -> Case:
    """Angles by a product over one element."""

    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            positions = torch.arange(x.shape[1])[:, None].float()
            angles = positions @ m.frequencies[None]
            turn = torch.cat([angles, angles], -1)
        q = m.first(x)
        left, right = q.chunk(2, -1)
        return q * turn.cos() + torch.cat([-right, left], -1) * turn.sin()

    frequencies = torch.rand(WIDTH // 2)
    model = Program(forward, first=_linear(), frequencies=frequencies)
    return model.eval(), (torch.randn(2, 4, WIDTH),)


def convolution() -> Case:
    """Convolution, batch norm by its running statistics, ReLU in place, pooling."""
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        _linear(),
    )
    return model.eval(), (torch.randn(2, 3, 6, 6),)


def in_place() -> Case:
    """Writes of full into low, of low into full, and to an input."""

    def forward(m: Any, x: Any, state: Any) -> Any:
        h = F.relu_(m.first(x))
        h.view(-1).add_(x.view(-1))
        y = x.clone()
        y.add_(m.second(h))
        state.mul_(0.5)
        return y

    model = Program(forward, first=_linear(), second=_linear())
    return model.eval(), (torch.randn(4, WIDTH), torch.ones(4))


def tied() -> Case:
    """A head that is the table of the embedding."""

    def forward(m: Any, ids: Any) -> Any:
        return m.head(m.norm(m.table(ids)))

    table, head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 9, bias=False)
    head.weight = table.weight
    model = Program(forward, table=table, head=head, norm=nn.LayerNorm(WIDTH))
    return model.eval(), (torch.tensor([[1, 2, 3]]),)


def checkpointed() -> Case:
    """A block whose activations are computed again in the backward pass."""

    def forward(m: Any, x: Any) -> Any:
        h = checkpoint(lambda y: torch.tanh(m.first(y)), x, use_reentrant=False)
        return m.second(h)

    model = Program(forward, first=_linear(), second=_linear())
    return model.eval(), (torch.randn(4, WIDTH),)


def lstm() -> Case:
    """A recurrent layer and a head."""

    def forward(m: Any, x: Any) -> Any:
        return m.head(m.core(x)[0])

    model = Program(forward, core=nn.LSTM(WIDTH, WIDTH), head=_linear())
    return model.eval(), (torch.randn(3, 2, WIDTH),)


CASES: Mapping[str, Callable[[], Case]] = {
    "attention": attention,
    "checkpointed": checkpointed,
    "convolution": convolution,
    "fused_attention": fused_attention,
    "in_place": in_place,
    "lstm": lstm,
    "mlp": mlp,
    "rms_norm": rms_norm,
    "rotary": rotary,
    "tied": tied,
}
"""Builders by name."""

POLICIES = ("autocast-cpu", "bf16", "fp16")
"""Policies under which every case is recorded."""
