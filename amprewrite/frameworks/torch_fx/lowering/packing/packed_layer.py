"""Layers that read packed weights, and plain ones where a weight stays plain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from amprewrite.errors import warn
from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import Layout
from amprewrite.frameworks.torch_fx.lowering.packing.packed_weight import (
    KEY,
    PADDED,
    Packed,
    call_of,
    pack,
    unpack,
)

MOST_PACKS = 8
"""Number of times that a layer packs a weight.

A model is converted, and its weights are loaded, saved or copied a few times, which
unpacks them. Where they are read or written between all calls, packing would take
longer than it saves: one of 768 by 3,072, and the look whether its bits come back,
takes as long as three calls with 16 rows (measured in float32 on an AVX2 core).
"""

FAILED = (
    "a weight of shape {} and {} was not packed for the kernels of this CPU, and the "
    "layers that read it run as slowly as before: {}"
)
"""Warning about a weight that the kernels refuse although they took one like it."""


@dataclass(eq=False)
class PackedLayer:
    """Layer with a packed weight, and an activation or a sum in its kernel.

    It has no derivative. A weight that is plain when it is called is packed, or read as
    it is, if it cannot be packed now.

    Attributes:
        plain: The layer of an operand, a plain weight and a bias or None.
        layout: The layout of its weight.
        shape: Shape of the operand, as a hint.
        epilogue: Ops of the kernel on the accumulator.
        after: The same ops and ``bound``, of the rounded result of ``plain`` and the
            rest; None for none.
        bound: Op that is done in place on the result of the kernel; None for none.
        packs: Number of times that it packed a weight.
    """

    plain: Callable[[Any, Any, Any], Any]
    layout: Layout
    shape: tuple[int, ...]
    epilogue: kernels.Epilogue = kernels.NONE
    after: Callable[..., Any] | None = None
    bound: Callable[[Any], Any] | None = None
    packs: int = 0
    _run: Callable[..., Any] = field(init=False)
    _padded: set[object] = field(init=False, default_factory=set[object])

    __name__ = "packed_layer"

    def __post_init__(self) -> None:
        """Look up the kernel."""
        run, bound = self.layout.kernel(self.epilogue), self.bound
        self._run = run if bound is None else lambda *given: bound(run(*given))

    def __call__(self, x: Any, weight: torch.Tensor, bias: Any, *rest: Any) -> Any:
        """Return the result.

        Args:
            x: The operand.
            weight: The weight, packed or plain.
            bias: The bias, or None.
            rest: The second operand of a sum.
        """
        held: Packed | None = vars(weight).get(KEY)
        if held is None or not (held.layout == self.layout and held.suits(x)):
            held = self._packed(weight, x)
            if held is None:
                return self.unpacked(x, weight, bias, *rest)
        return self._run(x, held.values, bias, *rest)

    def unpacked(self, x: Any, weight: torch.Tensor, bias: Any, *rest: Any) -> Any:
        """Return the result by a plain weight, rounded as often as in the plan."""
        found = self.plain(x, weight, bias)
        return found if self.after is None else self.after(found, *rest)

    def _packed(self, weight: torch.Tensor, x: torch.Tensor) -> Packed | None:
        """Return a weight packed now; None if it stays plain."""
        call = call_of(x)
        if self.packs >= MOST_PACKS or call in self._padded:
            return None
        if vars(weight).get(KEY) is not None:  # in the layout for other operands
            unpack(weight)
        try:
            why = pack(weight, self.layout, x)
        except RuntimeError as error:
            self.packs = MOST_PACKS
            warn(FAILED.format(tuple(weight.shape), weight.dtype, error))
            return None
        if why == PADDED:
            self._padded.add(call)
        if why:
            return None
        self.packs += 1
        return vars(weight).get(KEY)
