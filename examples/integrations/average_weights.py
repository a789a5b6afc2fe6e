"""Keep an exponential moving average of a converted model's weights."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import amprewrite


def main() -> None:
    """Train, and compare the losses of the last weights and of their average."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4)
    )
    converted = amprewrite.convert(model)
    average = AveragedModel(converted, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.5)
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(1)
    for _ in range(40):
        optimizer.zero_grad()
        functional.cross_entropy(converted(x), y).backward()
        optimizer.step()
        average.update_parameters(converted)

    with torch.no_grad():
        last = functional.cross_entropy(converted.eval()(x), y)
        mean = functional.cross_entropy(average.eval()(x), y)
    print(converted.plan.summary())
    print(f"loss {last:.3f}, of the average {mean:.3f}")


if __name__ == "__main__":
    main()
