"""Train a character GPT with torch on Python's own help texts, in bf16 by one line."""

from collections.abc import Iterator
from pydoc_data.topics import topics

import curves
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import amprewrite

BATCH, LENGTH, WIDTH, HEADS, BLOCKS = 8, 32, 32, 2, 2


class Block(nn.Module):
    """Attention to what came before and a perceptron, each around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[batch, length, width]`` for the same."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a score for each character that may follow."""
        return self.head(self.blocks(self.embed(ids) + self.position))


def train(kind: str, seed: int, steps: int) -> Iterator[float]:
    """Yield the loss of each step."""
    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    ids = torch.tensor([number[letter] for letter in text])

    torch.manual_seed(seed)
    model = GPT(len(letters))
    run = model
    if kind == "converted":  # shares the parameters of `model`, which stay float32
        run = amprewrite.convert(model, args=(ids[: BATCH * LENGTH].view(BATCH, -1),))
    elif kind == "everything cast":
        model.bfloat16()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(ids) - LENGTH, (BATCH, 1))
        batch = ids[starts + torch.arange(LENGTH + 1)]
        optimizer.zero_grad()
        scores = run(batch[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    curves.main(train, steps=300)
