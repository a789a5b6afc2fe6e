"""Random networks of the layers that a program for inference lowers.

A network is grown step by step, from images or from tokens; a step is kept where torch
itself runs it and its values stay small. Weights are as large as those that are packed,
and images as those whose layout is changed.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

WIDTH, TOKENS, LARGEST = 256, 8, 1e3

IMAGE = 4
"""Dimensions of a value that is a batch of images."""

MOST_PROPOSALS = 200
"""Proposals after which a network stays as it is."""

ACTIVATIONS = (
    F.relu,
    F.gelu,
    F.silu,
    F.hardswish,
    F.leaky_relu,
    F.sigmoid,
    F.tanh,
    F.hardtanh,
    F.hardsigmoid,
    F.elu,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.relu(x, inplace=True),
    lambda x: F.hardtanh(x, inplace=True),
    lambda x: F.relu6(x) * 2,
    lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3))),
    lambda x: x / (1 + torch.exp(-x)),
    lambda x: F.silu(x.reshape(-1, x.shape[-1])).reshape(x.shape),
    lambda x: F.dropout(x, 0.5, training=False),
)

WRITES = (
    lambda x, _: x.add_(1),
    lambda x, y: x.mul_(y),
    lambda x, _: x[:1].zero_(),
    lambda x, _: x.transpose(0, 1)[0].mul_(0.5),
    lambda x, y: x.copy_(y),
)

POINTWISE = (
    lambda x, y: x + y,
    lambda x, y: torch.add(x, y, alpha=2),
    lambda x, y: x * torch.sigmoid(y),
    lambda x, y: x - y,
    lambda x, y: (x.float() * y.float()).to(x.dtype),
    lambda x, y: x.to(torch.bfloat16) + y,
    lambda x, y: torch.where(x > y, x, y),
    torch.maximum,
)

MOVES_OF_IMAGES = (
    lambda x: x.flatten(2).transpose(1, 2),
    lambda x: x[:, :16],
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: x.contiguous(memory_format=torch.channels_last),
    lambda x: x.permute(0, 2, 3, 1),
    lambda x: x[..., ::2],
    lambda x: x.mean((2, 3)),
    lambda x: x.repeat(1, 2, 1, 1),
)

MOVES_OF_TOKENS = (
    lambda x: x[:, None].expand(-1, 4, *(-1,) * (x.dim() - 1)).flatten(1, 2),
    lambda x: x.repeat_interleave(2, dim=1),
    lambda x: x.transpose(0, 1),
    lambda x: x.chunk(2, -1)[1],
    lambda x: x[:, 1:],
    lambda x: torch.cat([x, -x], -1),
    lambda x: x.flatten(0, 1),
    lambda x: x.softmax(-1),
)

KINDS = {
    "layer": 8,
    "activation": 5,
    "pointwise": 4,
    "write": 2,
    "move": 3,
    "again": 3,
}
"""Kinds of steps, and how often each is proposed."""


@dataclass(frozen=True)
class Step:
    """One step of a network.

    Attributes:
        kind: The kind.
        number: Which one of the kind.
        values: The numbers of the values that it reads.
    """

    kind: str
    number: int
    values: tuple[int, int]


class Network(nn.Module):
    """Steps in their order, with the layers that they call.

    Attributes:
        layers: The layers.
        steps: The steps.
        returned: Numbers of the values that are returned beside the last one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[Step] = []
        self.returned: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        """Return the last value, and some of those before."""
        values = [x * 1]
        for step in self.steps:
            self.take(step, values)
        return values[-1], *(values[i] for i in self.returned)

    def take(self, step: Step, values: list[Any]) -> None:
        """Take a step: append its value, or write to one."""
        x, y = (values[i] for i in step.values)
        if step.kind == "layer":
            values.append(self.layers[step.number](x))
        elif step.kind == "activation":
            values.append(ACTIVATIONS[step.number](x))
        elif step.kind == "pointwise":
            values.append(POINTWISE[step.number](x, y))
        elif step.kind == "write":
            WRITES[step.number](x, y)
        else:
            moves = MOVES_OF_IMAGES if x.dim() == IMAGE else MOVES_OF_TOKENS
            values.append(moves[step.number](x))

    def text(self) -> str:
        """Return the steps, a line each."""
        lines = [f"returns the last value and {self.returned}"]
        for step in self.steps:
            what = f"{step.kind} {step.number}"
            if step.kind == "layer":
                what = str(self.layers[step.number])
            lines.append(f"{what} of {step.values}")
        return "\n".join(lines)


def network(seed: int) -> tuple[Network, torch.Tensor]:
    """Return a random network, and its input: images, or tokens."""
    choose = random.Random(seed)
    batch, side = choose.choice((1, 2)), choose.choice((14, 16))
    shape = (batch, TOKENS, WIDTH) if seed % 2 else (batch, 32, side, side)
    torch.manual_seed(seed)
    x, net = torch.randn(shape), Network().eval()
    values, proposals = [x * 1], 0
    while len(net.steps) < 4 + seed % 13 and proposals < MOST_PROPOSALS:
        step, layer = proposed(choose, net, values)
        tried = [value.clone() for value in values]
        net.layers.extend(layer)
        try:
            with torch.no_grad():
                net.take(step, tried)
        except (RuntimeError, IndexError, ValueError):
            tried = []
        if tried and all(map(_is_small, tried)):
            net.steps.append(step)
            values = tried
        elif layer:
            del net.layers[-1]
        proposals += 1
    count = choose.choice((0, 0, 1, 2))
    net.returned = [choose.randrange(len(values)) for _ in range(count)]
    return net, x


def proposed(
    choose: random.Random, net: Network, values: list[Any]
) -> tuple[Step, list[nn.Module]]:
    """Return a step, and the layer that it calls if it does."""
    (kind,) = choose.choices([*KINDS], [*KINDS.values()])
    read = choose.choice((len(values) - 1, choose.randrange(len(values))))
    pair = read, choose.randrange(len(values))
    if kind == "again" and net.steps:  # the same op, perhaps after a write
        return choose.choice(net.steps), []
    if kind == "layer":
        layer = _layer(choose, values[read]).eval()
        return Step(kind, len(net.layers), pair), [layer]
    kinds = {"activation": ACTIVATIONS, "pointwise": POINTWISE, "write": WRITES}
    count = len(kinds.get(kind, MOVES_OF_TOKENS))
    return Step(kind, choose.randrange(count), pair), []


def _is_small(value: torch.Tensor) -> bool:
    if value.numel() == 0 or value.dim() < 2 or not value.is_floating_point():  # rows
        return False
    return bool(value.isfinite().all()) and float(value.abs().max()) < LARGEST


def _layer(choose: random.Random, value: torch.Tensor) -> nn.Module:
    if value.dim() == IMAGE:
        return _layer_of_images(choose, value.shape[1])
    width = value.shape[-1]
    return choose.choice(
        (
            nn.Linear(width, WIDTH, bias=choose.choice((True, False))),
            nn.Linear(width, choose.choice((WIDTH, 2 * WIDTH))),
            nn.LayerNorm(width),
            Norm(width),
            Attention(),
        )
    )


def _layer_of_images(choose: random.Random, channels: int) -> nn.Module:
    channels += channels % 2  # a norm has two groups; a layer that does not fit is left
    size, apart = choose.choice(((1, False), (3, False), (3, False), (3, True)))
    conv = nn.Conv2d(
        channels,
        channels if apart else choose.choice((32, 48, 64)),
        size,
        stride=choose.choice((1, 1, 2)),
        padding=choose.choice((0, size // 2)),
        dilation=choose.choice((1, 1, 2)),
        groups=channels if apart else 1,
        bias=choose.choice((True, False)),
    )
    norm = nn.BatchNorm2d(channels)
    norm.running_mean = torch.linspace(-1, 1, channels)
    norm.running_var = torch.linspace(0.5, 2, channels)
    means = nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(4), nn.GroupNorm(2, channels)
    return choose.choice(
        (conv, conv, conv, norm, *means, nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
    )


class Norm(nn.Module):
    """A norm that goes back to the dtype of its operand before its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``x``, of length one on average, times the weight."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Attention of eight heads that share the keys of two."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what ``x`` of shape ``(batch, tokens, width)`` attends to."""
        batch, tokens, _ = x.shape
        q = self.q(x).view(batch, tokens, 8, 32).transpose(1, 2)
        k, v = self.kv(x).view(batch, tokens, 4, 32).transpose(1, 2).chunk(2, 1)
        scale = torch.linspace(0.5, 2, 32)

        def repeat(y: torch.Tensor) -> torch.Tensor:
            wide = y[:, :, None].expand(batch, 2, 4, tokens, 32)
            return wide.reshape(batch, 8, tokens, 32)

        made = F.scaled_dot_product_attention(q * scale, repeat(k * scale), repeat(v))
        return made.transpose(1, 2).reshape(batch, tokens, WIDTH)
