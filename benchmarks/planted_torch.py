"""Small torch models of eight architectures, and faults planted in their programs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amprewrite.frameworks.torch_fx.derived.classes import programs_of

WIDTH = 32


def rms(x: Tensor) -> Tensor:
    """Normalise the last dimension by its root mean square."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)


class Layers(nn.Module):
    """Four linear layers and a function of them."""

    def __init__(self, run: Callable[..., Tensor], gain: float) -> None:
        """Draw the weights; those of ``b`` are ``gain`` times as large."""
        super().__init__()
        self.run = run
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        with torch.no_grad():
            self.b.weight.mul_(gain)
            self.conv.weight.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        return self.run(self, x)


def mlp(m: Layers, x: Tensor) -> Tensor:
    return m.d(functional.gelu(m.c(rms(m.b(functional.gelu(m.a(x)))))))


def encoder(m: Layers, x: Tensor) -> Tensor:
    q = m.a(functional.layer_norm(x, (WIDTH,)))
    scores = (q @ q.transpose(-1, -2) / WIDTH**0.5).softmax(-1)
    x = x + m.d(scores @ q)
    return x + m.c(functional.layer_norm(functional.gelu(m.b(x)), (WIDTH,)))


def decoder(m: Layers, x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1])[:, None] * torch.logspace(0, -1, WIDTH)
    q = m.a(rms(x))
    q = q * angle.cos() + q.roll(WIDTH // 2, -1) * angle.sin()
    mask = torch.full((x.shape[1], x.shape[1]), -1e4).triu(1)
    x = x + ((q @ q.transpose(-1, -2)) / WIDTH**0.5 + mask).softmax(-1) @ q
    return x + m.d(rms(functional.silu(m.c(rms(x))) * m.b(x)))


def convnet(m: Layers, x: Tensor) -> Tensor:
    image = x.reshape(-1, 4, 8, 8)
    image = image + functional.group_norm(m.conv(torch.relu(image)), 2)
    pooled = functional.avg_pool2d(image, 2).flatten(1).repeat(1, 2)
    return m.d(torch.relu(m.c(pooled.reshape(-1, WIDTH))))


def recurrent(m: Layers, x: Tensor) -> Tensor:
    h = torch.zeros_like(x[:, 0])
    for t in range(3):
        h = torch.tanh(m.a(x[:, t]) + rms(m.b(h + 1)))
    return m.d(functional.layer_norm(m.c(h), (WIDTH,)))


def mixer(m: Layers, x: Tensor) -> Tensor:
    tokens = functional.pad(x.transpose(1, 2), (0, WIDTH - x.shape[1]))
    mixed = m.a(tokens).transpose(1, 2)[:, : x.shape[1]]
    x = x + functional.gelu(functional.layer_norm(mixed, (WIDTH,)))
    return x + m.d(functional.gelu(rms(m.b(m.c(x)))))


def autoencoder(m: Layers, x: Tensor) -> Tensor:
    hidden = torch.tanh(rms(m.b(x)))
    mean, spread = m.a(hidden), torch.exp(m.c(hidden).float() / 4)
    return m.d(functional.softplus(mean + spread))


def graph(m: Layers, x: Tensor) -> Tensor:
    near = torch.sigmoid(m.a(x) @ x.transpose(-1, -2))
    near = near / near.sum(-1, keepdim=True)
    return m.d(torch.relu(near @ m.c(x))) + rms(near @ m.b(x))


MODELS: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    one.__name__: one
    for one in (
        mlp,
        encoder,
        decoder,
        convnet,
        recurrent,
        mixer,
        autoencoder,
        graph,
    )
}


def model_of(name: str, gain: float) -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model and its arguments; the weights of a layer times ``gain``."""
    torch.manual_seed(0)
    return Layers(MODELS[name], gain).eval(), (torch.randn(4, 8, WIDTH),)


def program(converted: Any, args: Any) -> Any:
    """Return the program of a converted model."""
    programs = programs_of(converted)
    return converted if programs is None else programs.program_for(converted, args, {})


def plant(converted: Any, args: Any, op: str, change: str, amount: float) -> None:
    """Change what an op of a converted model's program computes.

    Args:
        converted: The model.
        args: Its arguments.
        op: Name of the op, or of an inserted cast.
        change: ``scale``, ``nan``, ``cast`` or ``lost float``.
        amount: The factor of ``scale``.
    """
    held = program(converted, args)
    (node,) = [n for n in held.rewritten.graph.nodes if n.name == op]
    target = node.target

    def changed(*given: Any, **named: Any) -> Any:
        if change == "lost float":
            given = tuple(_low(x) for x in given)
        made = target(*given, **named)
        if change == "scale":
            return made * amount
        if change == "nan":
            made = made.clone()
            made.view(-1)[0] = torch.nan
        if change == "cast":
            return made.to(torch.float8_e5m2).to(made.dtype)
        return made.float() if change == "lost float" else made

    changed.__name__ = f"changed_{op}"
    node.target = changed
    held._run_graph(held.rewritten.graph)


def _low(x: Any) -> Any:
    floats = isinstance(x, Tensor) and x.dtype == torch.float32
    return x.to(torch.bfloat16) if floats else x
