"""Layouts of packed weights: of the matrix of a linear layer, of a convolution."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Epilogue, Window


class OfMatrix(NamedTuple):
    """Layout of the weight of a linear layer; it is the same for all operands.

    Attributes:
        transposed: Whether the plain weight is a matrix of inputs by outputs.
    """

    transposed: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions of a weight."""
        return 2

    @property
    def is_for_all(self) -> bool:
        """Whether it is the same for operands of all shapes."""
        return True

    def packed(self, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a weight in the layout of the kernel.

        Args:
            weight: The weight, of any strides, without a gradient.
            shape: Shape of the operand, as a hint: inputs are its last dimension.

        Raises:
            RuntimeError: The kernels of this CPU do not have its dtype.
        """
        matrix = weight.t() if self.transposed else weight
        return kernels.packed(matrix, prod(shape[:-1]))

    def plain(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the plain form of a packed weight, in memory of its own."""
        dense = kernels.plain(packed)
        return dense.t().contiguous() if self.transposed else dense

    def kernel(self, epilogue: Epilogue) -> Callable[..., torch.Tensor]:
        """Return the kernel of packed weights; see :func:`kernels.kernel`."""
        return kernels.kernel(epilogue)

    def suits(self, packed: torch.Tensor, shape: Sequence[int]) -> bool:
        """Return whether a packed weight is in the layout for another operand."""
        del packed, shape
        return True

    def example(self, weight: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a small operand, for the shape of a weight."""
        return 1, weight[0 if self.transposed else 1]

    def outputs(self, weight: Sequence[int]) -> int:
        """Return the number of outputs, for the shape of a weight."""
        return weight[1 if self.transposed else 0]

    def plain_layer(self, x: Any, weight: Any, bias: Any) -> torch.Tensor:
        """Return the result of the layer by a plain weight."""
        matrix = weight.t() if self.transposed else weight
        return torch.nn.functional.linear(x, matrix, bias)


class OfWindow(NamedTuple):
    """Layout of the weight of a convolution: one for each shape of the operand.

    In float32 on an AVX2 core, one of 128 by 128 by 3 by 3 with an operand of another
    shape than that it was packed for took 12 ms in place of 2.7, where the kernel wants
    other blocks for it.

    Attributes:
        window: The window.
    """

    window: Window

    @property
    def rank(self) -> int:
        """Number of dimensions of a weight: channels, and those of the window."""
        return 2 + len(self.window.stride)

    @property
    def is_for_all(self) -> bool:
        """Whether it is the same for operands of all shapes."""
        return False

    def packed(self, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a weight in the layout of the kernel for an operand of that shape.

        Raises:
            RuntimeError: The kernels of this CPU do not have its dtype.
        """
        return kernels.packed_window(weight, self.window, shape)

    def plain(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the plain form of a packed weight, in memory of its own."""
        return kernels.plain(packed)

    def kernel(self, epilogue: Epilogue) -> Callable[..., torch.Tensor]:
        """Return the kernel of packed weights; see :func:`kernels.window_kernel`."""
        return kernels.window_kernel(self.window, epilogue)

    def suits(self, packed: torch.Tensor, shape: Sequence[int]) -> bool:
        """Return whether a packed weight is in the layout for another operand."""
        return kernels.same(packed, self.packed(self.plain(packed), shape))

    def example(self, weight: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a small image, for the shape of a weight."""
        spans = zip(weight[2:], self.window.stride, self.window.dilation, strict=True)
        extents = (1 + far * (size - 1) + step for size, step, far in spans)
        return 1, weight[1] * self.window.groups, *extents

    def outputs(self, weight: Sequence[int]) -> int:
        """Return the number of outputs, for the shape of a weight."""
        return weight[0]

    def plain_layer(self, x: Any, weight: Any, bias: Any) -> torch.Tensor:
        """Return the result of the layer by a plain weight."""
        stride, padding, dilation, groups = self.window
        place = stride, padding, dilation, False, (0,) * len(stride), groups
        return torch.convolution(x, weight, bias, *place)


Layout = OfMatrix | OfWindow
"""Layout of a packed weight."""
