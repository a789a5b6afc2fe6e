"""Train on digits with master copies of the weights and without, and draw the losses.

The picture is figure 2a of Micikevicius et al., Mixed Precision Training (arXiv
1710.03740): weights that are stored in 16 bits lose updates that are small beside them.

    python examples/master_copies.py --out master_copies.svg
"""

import argparse
import copy
import warnings

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import amprewrite
from amprewrite.training.torch import lost_updates

RATE = 1e-4


class Classifier(nn.Module):
    """A network of two layers, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy of a batch."""
        return cross_entropy(self.down(torch.relu(self.up(images))), labels)


def train(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int
) -> tuple[list[float], float]:
    """Train a model; return its losses, and the share of updates lost in bfloat16."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    losses: list[float] = []
    with lost_updates(optimizer, "bfloat16", model=model, every=50) as lost:
        for _ in range(steps):
            loss = model(images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, lost.total.share


def main() -> None:
    """Train in three ways from the same start, print the last losses and draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", default="master_copies.svg", help="file of the plot")
    options = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels[:512]).float() / 16, torch.tensor(digits[:512])
    torch.manual_seed(0)
    plain = Classifier()
    masters, stored = copy.deepcopy(plain), copy.deepcopy(plain).bfloat16()
    converted = amprewrite.convert(masters, args=(images, labels), training=True)

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    runs = {
        "float32": (plain, images),
        "bf16, float32 master copies": (converted, images),
        "bf16, weights stored in bfloat16": (stored, images.bfloat16()),
    }
    for name, (model, given) in runs.items():
        losses, share = train(model, given, labels, options.steps)
        print(f"{name}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
        print(f"  {share:.0%} of the updates are below half an ulp of bfloat16")
        axes.plot(losses, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(options.out)


if __name__ == "__main__":
    warnings.simplefilter("ignore", amprewrite.errors.AmpWarning)
    main()
