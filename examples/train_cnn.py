"""Train a convolutional network on scikit-learn's digits, in float32 and in bf16."""

import copy

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

import amprewrite

BATCH, EPOCHS = 64, 5


def build() -> nn.Module:
    """Return a small network for 8 x 8 images of ten digits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def digits() -> tuple[torch.Tensor, ...]:
    """Return images and labels to train with, and others to test with."""
    pixels, digit = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(digit)
    order = range(len(labels))
    train, test = train_test_split(order, test_size=0.25, random_state=0)
    return images[train], labels[train], images[test], labels[test]


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Train ``model``; return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH)[:-1]:  # all of one size
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the part of the images whose digit is right."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    """Train both ways from the same start and compare."""
    images, labels, test_images, test_labels = digits()
    full = build()
    low = copy.deepcopy(full)

    loss = train(full, images, labels)
    found = accuracy(full.eval(), test_images, test_labels)
    print(f"float32: last loss {loss:.3f}, test accuracy {found:.3f}")

    # The parameters of `converted` are those of `low`: float32, trained in place.
    converted = amprewrite.convert(low, args=(images[:BATCH],), training=True)
    loss = train(converted, images, labels)
    print(converted.plan.summary().splitlines()[1])

    # The mode is part of a converted program, so evaluation is another conversion.
    evaluator = amprewrite.convert(low.eval(), args=(test_images,))
    found = accuracy(evaluator, test_images, test_labels)
    print(f"bf16:    last loss {loss:.3f}, test accuracy {found:.3f}")


if __name__ == "__main__":
    main()
