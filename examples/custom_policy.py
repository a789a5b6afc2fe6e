"""Change a policy in a file: one op and one module, and see what that changes."""

from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

import amprewrite

POLICY = Path(__file__).with_name("cautious.toml")


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model with a body and a head, and its arguments."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    model = nn.Sequential(OrderedDict(body=body, head=nn.Linear(64, 10)))
    return model.eval(), (torch.randn(32, 64),)


def main() -> None:
    """Print how the plans differ, and the decision that the file's rule made."""
    model, args = build()
    shipped = amprewrite.inspect(model, "bf16", args=args)
    ours = amprewrite.inspect(model, POLICY, args=args)
    print(*shipped.diff(ours), sep="\n", end="\n\n")
    print(ours.explain(ours.decisions[-1].op))

    rule = {"path": "body*", "class": "deny"}  # the same, without a file
    nothing_low = amprewrite.inspect(model, POLICY, args=args, overrides=[rule])
    print(*nothing_low.warnings, sep="\n")


if __name__ == "__main__":
    main()
