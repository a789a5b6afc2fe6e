"""The dtypes that eager autocast gives, on fake tensors.

Nothing is computed and no device is needed, but the dispatcher goes the way of the
device, through autocast: so the list for CUDA is tested without one.
"""

from collections.abc import Iterator
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.oracles.opinfo import (
    LOW,
    Program,
    fake_mode,
    is_full,
    name_of,
    torch_may_warn,
)

pytree = pytrees.pytree

OTHERWISE = {
    "masked.": "passes its input's dtype as an argument, which the capture holds",
    "native_group_norm": "eager autocast knows only group_norm, of which it is a part",
    "nn.functional.linear_cross_entropy.chunked": "a custom operator, left as traced",
    "nn.functional.multi_head_attention_forward": "has several results",
    "pca_lowrank": "has several results, of different dtypes",
    "svd_lowrank": "has several results, of different dtypes",
}
"""Beginnings of names that are not compared, and why."""


def eager_dtype(program: Program, device: str) -> str | None:
    """Return the dtype that eager autocast gives the first result; None if it fails."""
    halved = program.lowered == "all"
    with torch_may_warn(), fake_mode(), autocast(device):

        def enter(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            dtype = torch.bfloat16 if halved and is_full(x) else x.dtype
            form = {"dtype": dtype, "device": device}
            return torch.empty_strided(x.size(), x.stride(), **form)

        try:
            leaves = [enter(x) for x in program.leaves]
            first, args, kwargs = pytree.tree_unflatten(leaves, program.spec)
            return first_dtype(program.op(first, *args, **kwargs))
        except Exception:  # noqa: BLE001  # what cannot be faked fails in many ways
            return None


class autocast:  # noqa: N801  # a context manager
    """torch.autocast, without asking whether there is a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> None:
        torch.set_autocast_enabled(self.device, True)
        torch.set_autocast_dtype(self.device, torch.bfloat16)

    def __exit__(self, *_: object) -> None:
        torch.set_autocast_enabled(self.device, False)
        torch.clear_autocast_cache()


def first_dtype(result: Any) -> str:
    """Return the name of the dtype of the first tensor in ``result``."""
    tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return str(tensors[0].dtype).removeprefix("torch.")


def chosen_otherwise(decision: Any) -> bool:
    """Return whether we leave an op in full precision for a reason of our own."""
    kept = decision.op_class == "keep"  # random draws, factorisations, what is made
    alone = decision.reason == "contraction"  # an outer product
    return kept or alone or "low kernel" in decision.why


def other_dtypes(program: Program, plan: Any, device: str) -> Iterator[str]:
    """Yield how the last op with results differs from what eager autocast makes."""
    if name_of(program.info).startswith(tuple(OTHERWISE)):
        return
    found = [d for d in plan.decisions if d.native != LOW and d.results]
    if not found or chosen_otherwise(ours := found[-1]):
        return
    wanted = eager_dtype(program, device)
    if wanted and ours.results[0] != wanted:
        yield f"{ours.canonical} gives {ours.results[0]}, eager autocast {wanted}"
