"""Counts the floating-point operations of products in a torch program as it runs."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Products(TorchDispatchMode):
    """Counter of the floating-point operations of products, by dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        packet, held = func.overloadpacket, made
        held = made[0] if isinstance(made, tuple) else made
        if packet in flop_registry and type(held) is torch.Tensor:
            known = flop_registry[packet](*args, **(kwargs or {}), out_val=made)
            self.flops[str(held.dtype).removeprefix("torch.")] += known
        return made


def products(run: Callable[[], object]) -> dict[str, float]:
    """Return the floating-point operations of the products in a run, by dtype."""
    with Products() as counter:
        run()
    return dict(counter.flops)
