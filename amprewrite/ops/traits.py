"""Traits of one op: the keys of a line in ``ops.toml``."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

OperandRule = Literal["equal", "promote", "lead", "any"]
"""Kernel rule for operands of different float dtypes, see :class:`OpTraits`."""


class Group(StrEnum):
    """Groups that passes ask for; ``[groups]`` of ``ops.toml`` has these and others."""

    ATTENTION = "attention"
    CAST = "cast"
    COMPARISON = "comparison"
    CONVOLUTION = "convolution"
    EXPONENTIAL = "exponential"
    LOGARITHM = "logarithm"
    LOOKUP = "lookup"
    MEAN = "mean"
    MOVEMENT = "movement"
    POINTWISE = "pointwise"
    SELECTION = "selection"
    SQUARE = "square"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Facts about an op; the names are those of the keys in ``ops.toml``.

    Attributes:
        group: Kind of op, by which policies class it. Empty if not known.
        operand_rule: Treatment of operands of different float dtypes by ATen's kernel
            (primitives of JAX need equal ones): ``equal`` refuses them; ``promote``
            computes in the widest of those with dimensions, by a cast inside the kernel
            that costs nothing; ``lead`` takes the dtype of the first and accepts wider
            ones beside it; ``any`` converts them itself or reads only their metadata.
            Source: run on a CPU in eager, with float32 and bfloat16 operands; ``cat``,
            ``where`` and the in-place scatters are left at equal: not every overload
            and device promotes.
        exact_argument: Whether the result jumps, or turns, on a small error of a large
            argument, so that the ops that compute the argument are never lowered.
        exact_from: Index of the first operand that is such an argument: positions in
            an image, after the image.
        bends: Whether it bends or bounds what it reads, so that an argument need not be
            exact beyond it: activations, softmaxes, normalisations.
        curves: Whether it is a curve without bounds, so that what the test of a loop
            compares need not be exact beyond it.
        statistic: Whether it is a reduction that other ops compute with, so that a
            rounding of the result may grow: ``mean(x * x) - mean(x) ** 2``.
        first_moment: Whether it is a sum or a mean, which programs subtract.
        scales: Whether it is a product or a quotient, which turns a sum into a mean.
        singular: Whether it, or its derivative, has no bound near 0 or 1, though
            policies let it run low: what guards its argument is read in full.
        filler: Whether it fills a tensor with one number, which can be made in any
            dtype.
        orders: Whether it compares which number is larger; complex ones have no order.
            JAX's softmax contains such an op.
        chooses: Whether it returns some of its operands' values, so that a program may
            compare them: ``x == max(x, y)``.
        has_dtype_argument: Whether it computes in the dtype that its ``dtype=``
            argument names, where it has the argument. ``linalg_matrix_norm`` has it
            too, but refuses a low operand beside it where it needs a factorisation.
        rounds_inside: Text about roundings inside ATen's low kernel, other than of its
            results; empty if there are none. Source: see
            ``frameworks.torch_fx.probes.kernel_rounding``.
        rounds_inside_from: Least number of operands with which it rounds inside.
        addend_first: Whether a product has its addend before its factors.
        aten: Other ATen packets that are this op; the packet of the op's own name is
            one without being listed.
        jax: Other JAX primitives that are this op; the one of the op's own name, also
            with dashes, is one without being listed.
    """

    group: str = ""
    operand_rule: OperandRule = "equal"
    exact_argument: bool = False
    exact_from: int = 0
    bends: bool = False
    curves: bool = False
    statistic: bool = False
    first_moment: bool = False
    scales: bool = False
    singular: bool = False
    filler: bool = False
    orders: bool = False
    chooses: bool = False
    has_dtype_argument: bool = False
    rounds_inside: str = ""
    rounds_inside_from: int = 0
    addend_first: bool = False
    aten: tuple[str, ...] = ()
    jax: tuple[str, ...] = ()


UNKNOWN = OpTraits()
"""Traits of an op without a line."""


def op_keys(canonical: str, native: str = "") -> Iterator[str]:
    """Yield the names by which a table may list an op, the most exact one first.

    Args:
        canonical: The op's name in policies, such as ``softmax``.
        native: The framework's name: ``aten.softmax.int`` is also ``aten.softmax`` and
            ``aten::softmax``, as torch writes it. Empty if there is none.
    """
    yield native
    packet, dot, _ = native.rpartition(".")
    if dot:
        yield packet
        yield packet.replace(".", "::", 1)
    yield canonical


def line_key(canonical: str, native: str = "") -> str:
    """Return the name by which a line for an op is written: ``mylib::cube``.

    Args:
        canonical: The op's name in policies; that of a custom operator is qualified.
        native: The framework's name.
    """
    qualified = canonical == native.rpartition(".")[0]
    return canonical.replace(".", "::", 1) if qualified else canonical
