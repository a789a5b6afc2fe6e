"""Convert a small network, see what was decided and why, and prove the result."""

import torch
from torch import nn

import amprewrite


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model and its arguments; the command line reads this too.

    Try ``amprewrite inspect examples/convert_mlp.py:build``.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)
    )
    return model.eval(), (torch.randn(32, 64),)


def main() -> None:
    """Convert, print, verify."""
    model, args = build()
    converted = amprewrite.convert(model, policy="bf16", args=args)
    plan = converted.plan
    print(plan, end="\n\n")
    for decision in plan.decisions:
        print(plan.explain(decision.op))
    print()
    print(amprewrite.verify(model, converted, args, rtol=2e-2))


if __name__ == "__main__":
    main()
