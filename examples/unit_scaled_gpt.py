"""Unit-scale a plain character GPT, and train it in 8 bits without a loss scale.

python examples/unit_scaled_gpt.py --width 128 --layers 3 --steps 600
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import amprewrite
from amprewrite.unit_scaling import optim


@dataclass(frozen=True)
class Size:
    """Extents of the model and of a batch."""

    width: int = 32
    layers: int = 2
    heads: int = 4
    length: int = 32
    batch: int = 8


class Block(nn.Module):
    """Attention to what came before and a perceptron, each around a shortcut."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, length, width]`` for the same."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """A GPT as usual, with weights drawn as GPT-2 does; it knows of no scales."""

    def __init__(self, letters: int, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, size.width)
        self.position = nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.readout = nn.Linear(size.width, letters, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of ``[batch, length]`` characters."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.embed(ids) + self.position(places))
        scores = self.readout(self.norm(x))
        return cross_entropy(scores.flatten(0, 1), targets.flatten())


def numbered_text() -> tuple[Tensor, int]:
    """Return the help texts of Python as numbers, and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    return torch.tensor([number[letter] for letter in text]), len(letters)


def batches(text: Tensor, size: Size, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield characters and those that follow them, ``[batch, length]`` each."""
    draws = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(
            len(text) - size.length, (size.batch, 1), generator=draws
        )
        found = text[starts + torch.arange(size.length + 1)]
        yield found[:, :-1], found[:, 1:]


def unit_scaled(model: GPT, args: tuple[Tensor, Tensor], layers: int) -> GPT:
    """Return a unit-scaled copy, whose parameters know how fast they learn."""
    scaled = amprewrite.unit_scale(model, args)
    optim.assign_types(
        scaled,
        {"readout.weight": "output", "*norm*.weight": "norm", "*.bias": "bias"},
        depths={"blocks.*": 2 * layers},  # branches around shortcuts
        default="weight",
    )
    return scaled


def main() -> None:
    """Train the model in float32 and in 8 bits, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in vars(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.25)
    asked = vars(parser.parse_args())
    steps, rate = asked.pop("steps"), asked.pop("rate")
    size, (text, letters) = Size(**asked), numbered_text()

    args = next(batches(text, size, seed=0))
    for name in ("float32", "unit-fp8"):
        torch.manual_seed(0)
        model = unit_scaled(GPT(letters, size), args, size.layers)
        if name != "float32":
            model = amprewrite.convert(model, name, args=args, training=True)
            print(*model.plan.summary().splitlines()[1:3], sep="\n")
        optimizer = optim.AdamW(model.parameters(), lr=rate)
        losses: list[float] = []
        for _, batch in zip(range(steps), batches(text, size, seed=1), strict=False):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()  # no loss scale: gradients are near 1 as they are
            optimizer.step()
            losses.append(loss.item())
        last = losses[-max(1, steps // 10) :]
        print(f"{name}: loss {losses[0]:.3f} to {sum(last) / len(last):.3f}")


if __name__ == "__main__":
    main()
