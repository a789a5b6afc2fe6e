"""Kernels of oneDNN on packed weights, and the layouts of these weights.

Inductor calls the same kernels for frozen programs. A weight is in blocks, in the order
in which the kernel reads it, and an activation or a sum is done on the accumulator,
before the result is rounded.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from amprewrite.frameworks.torch_fx.compat import operators


class Epilogue(NamedTuple):
    """Op that a kernel does on its accumulator.

    Attributes:
        name: Its name in oneDNN; that of an activation, or ``none``.
        scalars: Its numbers.
        algorithm: Its variant.
        sums: Whether a second operand is added before.
    """

    name: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""
    sums: bool = False


NONE = Epilogue()
"""No op."""

SUM = Epilogue(sums=True)
"""Sum with a second operand, and no activation."""


class Window(NamedTuple):
    """Window of a convolution, with a number for each dimension of an image.

    Attributes:
        stride: Steps.
        padding: Zeros on each side.
        dilation: Distances of its elements.
        groups: Number of groups of channels.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def packs(dtype: torch.dtype) -> bool:
    """Return whether linear layers of a dtype run with packed weights on this CPU.

    Not in float32: on an AVX2 core packed layers took 0.6 to 1.3 of the time of plain
    ones, and a BERT of four layers 0.97 with 16 tokens and 1.04 with 128
    (``benchmarks.packing``).
    """
    low = {
        torch.bfloat16: "is_mkldnn_bf16_supported",
        torch.float16: "is_mkldnn_fp16_supported",
    }
    if dtype not in low or not torch.backends.mkldnn.enabled or not has_kernels():
        return False
    return bool(operators.onednn(low[dtype])())


def convolves(dtype: torch.dtype) -> bool:
    """Return whether convolutions of a dtype run with packed weights on this CPU.

    In float32, too: between two others with the channels last, packed ones of 3x3 with
    a residual took 0.6 to 1.0 of the time of plain ops, and 0.4 to 1.06 of that of
    plain ops with the channels last (``benchmarks.packing``).
    """
    if dtype == torch.float32:
        return torch.backends.mkldnn.enabled and has_kernels()
    return packs(dtype)


@cache
def has_kernels() -> bool:
    """Return whether this is an x86 CPU on which torch was built with oneDNN.

    The kernels for ARM fuse nothing (inductor leaves them out, too).
    """
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return is_x86 and torch.backends.mkldnn.is_available()


def packed_matrix(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a weight in the layout of the kernel.

    Args:
        weight: Matrix of outputs by inputs, of any strides, without a gradient.
        rows: Number of rows that it will be multiplied with, as a hint.

    Raises:
        RuntimeError: The kernels of this CPU do not have its dtype.
    """
    reorder = operators.onednn("reorder_linear_weight").default
    return operators.builtin_of(reorder)(weight, rows)


def packed_window(
    weight: torch.Tensor, window: Window, shape: Sequence[int]
) -> torch.Tensor:
    """Return the weight of a convolution in the layout of the kernel.

    Args:
        weight: The weight, of any strides, without a gradient.
        window: Its window.
        shape: Shape of the operand, by which the kernel chooses the layout.

    Raises:
        RuntimeError: The kernels of this CPU do not have its dtype.
    """
    reorder = operators.onednn("reorder_convolution_weight").default
    stride, padding, dilation, groups = window
    run = operators.builtin_of(reorder)
    return run(weight, padding, stride, dilation, groups, [*shape])


def plain(weight: torch.Tensor) -> torch.Tensor:
    """Return a packed weight in its shape, with the same bits."""
    return weight.to_dense()


def size(weight: torch.Tensor) -> int:
    """Return the bytes of a packed weight, with those that fill blocks."""
    return operators.onednn("nbytes")(weight)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two packed forms of one weight have the same layout.

    By their memory: the text of a layout has bytes that do not belong to it.
    """
    length = size(one)
    if size(other) != length:
        return False
    return torch.equal(*(operators.onednn_memory(w, length) for w in (one, other)))


def matrix_kernel(epilogue: Epilogue) -> Callable[..., torch.Tensor]:
    """Return a function of the operand, the packed matrix, the bias and the rest.

    The rest is the second operand of a sum, which no activation follows, or empty. It
    has no derivative.
    """
    return _kernel("linear_pointwise", epilogue, (), ())


def window_kernel(window: Window, epilogue: Epilogue) -> Callable[..., torch.Tensor]:
    """Return a function of an image, the packed weight, the bias and the rest.

    The rest is the second operand of a sum, or empty. The result has its channels last.
    It has no derivative.
    """
    stride, padding, dilation, groups = window
    name = None if epilogue.name == "none" else epilogue.name
    after = (None, name, [*epilogue.scalars], epilogue.algorithm)
    place = (padding, stride, dilation, groups)
    return _kernel("convolution_pointwise", epilogue, place, after)


def _kernel(
    op: str, epilogue: Epilogue, place: tuple[Any, ...], after: tuple[Any, ...]
) -> Callable[..., torch.Tensor]:
    """Return an operator of oneDNN as a function of its tensors.

    Args:
        op: The operator.
        epilogue: What it does on its accumulator.
        place: Its arguments after the tensors.
        after: Its arguments for an activation after a sum.
    """
    overloads = operators.onednn(op)
    add = operators.builtin_of(overloads.binary)
    run = operators.builtin_of(overloads.default)
    activation = (*place, epilogue.name, [*epilogue.scalars], epilogue.algorithm)
    total = (*place, "add", *after)

    def summed(x: Any, weight: Any, bias: Any, other: Any) -> torch.Tensor:
        return add(x, other, weight, bias, *total)

    def activated(x: Any, weight: Any, bias: Any) -> torch.Tensor:
        return run(x, weight, bias, *activation)

    return summed if epilogue.sums else activated


class OfMatrix(NamedTuple):
    """Layout of the weight of a linear layer; it is the same for all operands.

    Attributes:
        transposed: Whether the plain weight is a matrix of inputs by outputs.
    """

    transposed: bool = False

    rank = 2
    """Number of dimensions of a weight."""

    is_for_all = True
    """Whether it is the same for operands of all shapes."""

    def packed(self, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a weight in the layout of the kernel.

        Args:
            weight: The weight, of any strides, without a gradient.
            shape: Shape of the operand, as a hint: inputs are its last dimension.

        Raises:
            RuntimeError: The kernels of this CPU do not have its dtype.
        """
        matrix = weight.t() if self.transposed else weight
        return packed_matrix(matrix, prod(shape[:-1]))

    def plain(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the plain form of a packed weight, in memory of its own."""
        dense = plain(packed)
        return dense.t().contiguous() if self.transposed else dense

    def kernel(self, epilogue: Epilogue) -> Callable[..., torch.Tensor]:
        """Return the kernel of packed weights; see :func:`matrix_kernel`."""
        return matrix_kernel(epilogue)

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

    is_for_all = False
    """Whether it is the same for operands of all shapes."""

    def packed(self, weight: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a weight in the layout of the kernel for an operand of that shape.

        Raises:
            RuntimeError: The kernels of this CPU do not have its dtype.
        """
        return packed_window(weight, self.window, shape)

    def plain(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the plain form of a packed weight, in memory of its own."""
        return plain(packed)

    def kernel(self, epilogue: Epilogue) -> Callable[..., torch.Tensor]:
        """Return the kernel of packed weights; see :func:`window_kernel`."""
        return window_kernel(self.window, epilogue)

    def suits(self, packed: torch.Tensor, shape: Sequence[int]) -> bool:
        """Return whether a packed weight is in the layout for another operand."""
        return same(packed, self.packed(self.plain(packed), shape))

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
