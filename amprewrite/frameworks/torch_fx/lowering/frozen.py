"""Compiled functions with weights as constants, compiled again when one changes.

Inductor folds and packs weights that it may take for constants. It looks at them once,
so that a frozen function is right for as long as nobody writes to a weight: before each
call the weights are compared with those that it was compiled for.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Marks, layouts
from amprewrite.frameworks.torch_fx.compat.tensor_internals import counts_writes

MOST_FREEZES = 3
"""Number of times that a function is frozen.

A model is converted, and its weights are loaded once or twice. Whoever writes to them
more often would wait for the compiler each time: then they are inputs of the function.
"""


class Frozen:
    """A function with constant weights; of changed weights it makes another.

    Attributes:
        freezes: Number of times that it was made.
    """

    def __init__(
        self,
        make: Callable[[], Callable[..., Any]],
        unfrozen: Callable[..., Any],
    ) -> None:
        """Make nothing yet.

        Args:
            make: Returns the function, which takes the weights of now as constants.
            unfrozen: The function that reads its weights at each call.
        """
        self.freezes = 0
        self._make, self._unfrozen = make, unfrozen
        self._run: Callable[..., Any] | None = None
        self._weights, self._written = Marks(()), tuple[torch.Tensor, ...]()
        self._layouts: list[list[Any]] = []

    def of(
        self, weights: Sequence[torch.Tensor], written: Sequence[torch.Tensor] = ()
    ) -> Callable[..., Any]:
        """Return the function to call with these weights.

        Args:
            weights: The weights that the function reads, and does not write to. Of
                writes that torch does not count (through ``weight.data``), those to
                all of a weight are seen; see :class:`Marks`.
            written: The tensors that it writes to: others, or those in another layout,
                have another function.
        """
        same = all(map(is_, self._written, written))
        same = same and layouts(written) == self._layouts
        if self._run is not None and same and self._weights.hold(weights):
            return self._run
        if self.freezes >= MOST_FREEZES or not all(map(_is_followed, weights)):
            self._run = None
            return self._unfrozen
        self.freezes += 1
        self._weights, self._written = Marks(weights), tuple(written)
        self._layouts = layouts(written)
        self._run = self._make()
        return self._run


def _is_followed(tensor: torch.Tensor) -> bool:
    """Return whether writes to a tensor are seen.

    On other devices than a CPU, a look at values would wait for the device.
    """
    return tensor.device.type == "cpu" and counts_writes(tensor)
