"""Train an LSTM in float16 with and without loss scaling, and draw its gradients.

The pictures are those of section 3.2 of Micikevicius et al., Mixed Precision Training
(arXiv 1710.03740): gradients below 2**-24 become zero in float16, and the model learns
less; a scale moves them into the range. The text is that of Python's own help.

    python examples/loss_scaling_lstm.py --out loss_scaling.svg
"""

import argparse
import copy
import warnings
from pydoc_data.topics import topics

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy

import amprewrite
from amprewrite.training.torch import GradScaler

PARTS = 2**14
"""Number of parts of a batch, as if their gradients were summed up before each step.

The loss of each is divided by it, and so are its gradients. One part is trained here.
"""

LENGTH, BATCH = 6, 16


class Characters(nn.Module):
    """A language model of characters, with its loss."""

    def __init__(self, known: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(known, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, known)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the loss of guessing each next character."""
        hidden, _ = self.lstm(self.embedding(text[:, :-1]))
        guesses = self.head(hidden).flatten(0, 1)
        return cross_entropy(guesses, text[:, 1:].flatten()) / PARTS


def batches(steps: int) -> tuple[int, list[torch.Tensor]]:
    """Return the number of characters, and batches of text, shape (BATCH, LENGTH+1)."""
    text = topics["typesseq"] + topics["formatstrings"]
    known = sorted(set(text))
    codes = torch.tensor([known.index(character) for character in text])
    draws = torch.Generator().manual_seed(0)
    starts = torch.randint(len(codes) - LENGTH - 1, (steps, BATCH), generator=draws)
    return len(known), [
        torch.stack([codes[s : s + LENGTH + 1] for s in row]) for row in starts.tolist()
    ]


def train(
    model: nn.Module, texts: list[torch.Tensor], scaler: GradScaler
) -> list[float]:
    """Train a model, and return the losses of its steps, undivided."""
    # Its epsilon must be small beside gradients that are divided by PARTS.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-16)
    losses: list[float] = []
    for text in texts:
        loss = model(text)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item() * PARTS)
    return losses


def main() -> None:
    """Look at the gradients, train in three ways, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--out", default="loss_scaling.svg", help="file of the losses")
    parser.add_argument("--histogram", default="exponents.svg", help="the other file")
    options = parser.parse_args()

    known, texts = batches(options.steps)
    torch.manual_seed(0)
    model = Characters(known, options.width)

    found = amprewrite.histogram(model, (texts[0],))
    scale = found.loss_scale("float16")
    for factor in (1.0, scale):
        shares = found.share_below("float16", factor)["activation gradient"]
        print(
            f"gradients times {factor:.0f}: {shares.zero:.1%} become zero in float16, "
            f"{shares.subnormal:.1%} lose bits, {shares.overflow:.1%} overflow"
        )
    found.plot(scale).savefig(options.histogram)

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, policy, first in (
        ("float32", "", 1.0),
        ("float16 without a loss scale", "fp16", 1.0),
        ("float16 with a loss scale", "fp16", scale),
    ):
        trained: nn.Module = copy.deepcopy(model)
        if policy:
            trained = amprewrite.convert(
                trained, policy, args=(texts[0],), training=True
            )
        scaler = GradScaler("cpu", first, enabled=first > 1)
        losses = train(trained, texts, scaler)
        print(f"{name}: loss {losses[0]:.3f} to {sum(losses[-10:]) / 10:.3f}")
        axes.plot(losses, label=name, alpha=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(options.out)


if __name__ == "__main__":
    warnings.simplefilter("ignore", amprewrite.errors.AmpWarning)
    main()
