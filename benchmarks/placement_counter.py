"""Casts and bytes of a torch program, counted as it runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree  # noqa: TID251
from torch.utils._python_dispatch import TorchDispatchMode

CASTS = frozenset((torch.ops.aten._to_copy.default,))  # noqa: SLF001
"""What a change of dtype becomes, whoever asked for it."""

LOOKUPS = frozenset((torch.ops.aten.embedding.default,))
"""Ops that read rows of their first operand: as many as they give."""


@dataclass
class Counted:
    """What one run moved.

    Attributes:
        casts: Casts between float dtypes.
        cast_bytes: Bytes that they read and wrote.
        weight_casts: Those of them that cast parameters.
        weight_cast_bytes: Their bytes.
        op_bytes: Bytes that all other ops read and wrote; views move nothing.
    """

    casts: int = 0
    cast_bytes: int = 0
    weight_casts: int = 0
    weight_cast_bytes: int = 0
    op_bytes: int = 0


@dataclass
class Counter(TorchDispatchMode):
    """Counts the ops that reach the dispatcher: below autocast, above the kernels."""

    weights: frozenset[int]
    counted: Counted = field(default_factory=Counted)

    def __post_init__(self) -> None:
        """Become a mode."""
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func in CASTS and args[0].is_floating_point():
            self._cast(args[0], result)
        elif not func.is_view:
            operands = list(tensors((args, kwargs)))
            if func in LOOKUPS:
                operands = [result, *operands[1:]]
            moved = map(bytes_of, (*operands, *tensors(result)))
            self.counted.op_bytes += sum(moved)
        return result

    def _cast(self, before: torch.Tensor, after: torch.Tensor) -> None:
        moved = bytes_of(before) + bytes_of(after)
        if before.dtype == after.dtype:
            self.counted.op_bytes += moved
            return
        self.counted.casts += 1
        self.counted.cast_bytes += moved
        if before.untyped_storage().data_ptr() in self.weights:
            self.counted.weight_casts += 1
            self.counted.weight_cast_bytes += moved


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results."""
    leaves: Iterable[Any] = pytree.tree_leaves(tree)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of the distinct elements of a tensor that may be expanded."""
    count = 1
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= extent if stride else 1
    return count * tensor.element_size()


def count(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Counted, Any]:
    """Return what one call moves, and what it gives."""
    held = (*model.parameters(), *model.buffers())
    weights = frozenset(tensor.untyped_storage().data_ptr() for tensor in held)
    with torch.no_grad(), Counter(weights) as counter:
        result = model(*args, **kwargs)
    return counter.counted, result
