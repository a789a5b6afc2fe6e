"""Train a convolutional network on digits with torch, in bf16 by one line."""

from collections.abc import Iterator

import curves
import digits
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import amprewrite


def network() -> nn.Module:
    """Return a network for 8 x 8 images of ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(kind: str, seed: int, steps: int) -> Iterator[float]:
    """Yield the loss of each step."""
    torch.manual_seed(seed)
    model, dtype = network(), torch.float32
    run = model
    if kind == "converted":  # shares the parameters of `model`, which stay float32
        run = amprewrite.convert(model, args=(torch.zeros(64, 1, 8, 8),))
    elif kind == "everything cast":
        dtype = torch.bfloat16
        model.to(dtype)

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for images, labels in digits.batches(seed, steps):
        x = torch.from_numpy(images).unsqueeze(1).to(dtype)
        optimizer.zero_grad()
        loss = cross_entropy(run(x), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    curves.main(train, steps=300)
