"""Run an op once more, with the same random numbers, and on other operands."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.compat.operators import OpOverload, is_mutable
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.frameworks.torch_fx.probes.arrays import TensorValues, floats

REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""Errors that an op raises if it has no kernel for its operands' dtypes."""


class Again:
    """An op of the original and operands for it, in the reference's dtype.

    Args:
        run: Calls the op with operands.
        operands: Positional and keyword operands, with tensors at any depth. Operands
            that the op writes are copies.
        writes: Whether the op may write to its operands.
    """

    def __init__(
        self, run: Callable[[Any], Any], operands: Any, *, writes: bool = False
    ) -> None:
        """Store the op and the operands; nothing is run."""
        self.run, self.operands, self.writes = run, operands, writes

    @property
    def largest(self) -> int:
        """Number of elements of the largest float operand."""
        return max((tensor.numel() for tensor in floats(self.operands)), default=0)

    def results(self) -> list[torch.Tensor] | None:
        """Return the float results; None if the op does not run on the operands."""
        return self._results(lambda tensor: tensor.clone() if self.writes else tensor)

    def __call__(self, unit: float, draw: int) -> tuple[TensorValues, ...] | None:
        """Return the results with every float operand moved by ``unit``, up or down.

        Random ops draw other numbers than before. The random state is restored.

        Args:
            unit: Relative amount by which each element is moved.
            draw: Seed of the choice between up and down.
        """
        held = floats(self.operands)
        devices = sorted({t.device.index or 0 for t in held if t.is_cuda})
        draws = torch.Generator().manual_seed(draw)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor.clone()
            signs = torch.randint(0, 2, tensor.shape, generator=draws) * 2 - 1
            return tensor * (1 + unit * signs.to(tensor.device, torch.float64))

        with fork_rng(devices):
            untyped: Any = torch
            untyped.manual_seed(draw)
            made = self._results(moved)
            return None if made is None else tuple(map(TensorValues, made))

    def _results(
        self, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor] | None:
        def changed(leaf: Any) -> Any:
            strided = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
            return change(leaf) if strided else leaf

        try:
            return floats(self.run(pytree.tree_map(changed, self.operands)))
        except REFUSALS:
            return None


class Draws:
    """Random state of an op, to draw the same numbers at each run."""

    def __init__(self, node: Node) -> None:
        tags: Collection[Any] = getattr(node.target, "tags", ())
        self.random = torch.Tag.nondeterministic_seeded in tags
        if self.random:
            self.host = torch.get_rng_state()
            cuda = torch.cuda.is_initialized()
            self.devices = torch.cuda.get_rng_state_all() if cuda else []

    def rewind(self) -> None:
        """Restore the random generators."""
        if self.random:
            torch.set_rng_state(self.host)
            if self.devices:
                torch.cuda.set_rng_state_all(self.devices)


def may_write(node: Node) -> bool:
    """Return whether the op of ``node`` may write to its operands."""
    known, target = isinstance(node.target, OpOverload), cast("Any", node.target)
    return not known or is_mutable(target)


class Runs(NamedTuple):
    """The float results of a converted op, and of the original's.

    Attributes:
        actual: Of the converted op in its program.
        alone: Of the converted op on the reference's operands, rounded.
        same: Of the original's op on these; None if it does not run on them.
        again: The original's op on the operands with which it is compared.
        checked: Its results on the operands of ``actual``, if it is compared there.
    """

    actual: list[torch.Tensor]
    alone: list[torch.Tensor]
    same: list[torch.Tensor] | None
    again: Again
    checked: tuple[torch.Tensor, ...] = ()
