"""Train a converted network in the loop of accelerate, and save it."""

import tempfile

import numpy as np
import torch
from accelerate import Accelerator, load_checkpoint_in_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import amprewrite

TEST = 300
"""Number of digits to test on."""


def network() -> nn.Sequential:
    """Return a small network for images of 64 pixels."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)
    )


def main() -> None:
    """Train, save, and test the plain network with the saved weights."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(np.asarray(pixels)).float() / 16, torch.as_tensor(labels)

    model = network().train()
    accelerator = Accelerator(cpu=True)  # without mixed_precision: the plan has it
    converted, optimizer, loader = accelerator.prepare(
        amprewrite.convert(model),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        DataLoader(TensorDataset(x[:-TEST], y[:-TEST]), batch_size=64, shuffle=True),
    )
    losses: list[float] = []
    for _ in range(5):
        for images, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(converted(images), targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())

    print(f"loss {losses[0]:.3f} to {sum(losses[-10:]) / 10:.3f}")
    print(accelerator.unwrap_model(converted).plan.summary())
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_model(converted, folder)
        plain = network().eval()
        load_checkpoint_in_model(plain, folder)
    accuracy = (plain(x[-TEST:]).argmax(-1) == y[-TEST:]).float().mean()
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
