"""Measure a converted model by torchmetrics: a metric inside of it, and one outside."""

import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

import amprewrite


class Classifier(nn.Module):
    """A perceptron that holds its own metric."""

    def __init__(self) -> None:
        """Make the layers and the metric."""
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        self.accuracy = MulticlassAccuracy(num_classes=3, average="micro")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of each class, f32[n, 3]."""
        return self.layers(x)


def main() -> None:
    """Train, and compare both metrics; their states are integers and stay so."""
    torch.manual_seed(0)
    model = Classifier()
    converted = amprewrite.convert(model)
    outside = MulticlassAccuracy(num_classes=3, average="micro")
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.5)
    x = torch.randn(512, 8)
    y = x[:, :3].argmax(1)
    for part in range(32):
        rows = slice(part % 8, None, 8)
        scores = converted(x[rows])
        loss = functional.cross_entropy(scores, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        converted.accuracy.update(scores, y[rows])
        outside.update(scores, y[rows])
    inside = converted.accuracy.compute()

    print(converted.plan.summary())
    print(f"accuracy {inside:.4f}, outside {outside.compute():.4f}")


if __name__ == "__main__":
    main()
