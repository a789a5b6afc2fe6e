"""What one op is, as one line of ``ops.toml`` says it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

OperandRule = Literal["equal", "promote", "lead", "any"]
"""What a kernel does with operands of different float dtypes, see :class:`OpTraits`."""


class Group(StrEnum):
    """Groups that passes ask for; ``[groups]`` of ``ops.toml`` has these and others."""

    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    LOOKUP = "lookup"
    SQUARE = "square"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTraits:
    """Facts about an op; the names are those of the keys in ``ops.toml``.

    Attributes:
        group: What kind of op it is: policies speak of groups. Empty if not known.
        operand_rule: What ATen's kernel does with operands of different float dtypes
            (primitives of JAX want equal ones): ``equal`` wants them equal;
            ``promote`` computes in the widest of those with dimensions, by a cast
            inside the kernel that costs nothing; ``lead`` takes the dtype of the first
            and accepts wider ones beside it; ``any`` converts them itself or reads only
            their metadata. Source: run on a CPU in eager, with float32 and bfloat16
            operands; ``cat``, ``where`` and the in-place scatters are left at equal:
            not every overload and device promotes.
        exact_argument: Whether the result jumps or turns with a small error of a large
            argument, so that what makes the argument is never lowered.
        statistic: Whether it is a reduction that other ops compute with, so that a
            rounding of the result may grow: ``mean(x * x) - mean(x) ** 2``.
        first_moment: Whether it is a sum or a mean, of which a difference is taken.
        scales: Whether it makes a sum a mean: a product or a quotient.
        filler: Whether it fills a tensor with one number; made low, that is the low
            number.
        orders: Whether it asks which of some numbers is larger; complex ones have no
            order. In JAX a softmax is made of such an op.
        chooses: Whether it hands back some of its operands' values, so that a program
            may ask which: ``x == max(x, y)``.
        has_dtype_argument: Whether it computes in the dtype that its ``dtype=``
            argument names, where it has the argument. ``linalg_matrix_norm`` has it
            too, but refuses a low operand beside it where it needs a factorisation.
        rounds_inside: What ATen's low kernel may round beside its results; empty if
            nothing. Source: see ``frameworks.torch_fx.probes.kernel_rounding``.
        rounds_inside_from: From how many operands on it may.
        addend_first: Whether a product takes what is added to it before its factors.
        aten: Other packets of ATen that are this op; one of the op's own name is so
            without being listed.
        jax: Other primitives of JAX that are this op; one of the op's own name, also
            with dashes, is so without being listed.
    """

    group: str = ""
    operand_rule: OperandRule = "equal"
    exact_argument: bool = False
    statistic: bool = False
    first_moment: bool = False
    scales: bool = False
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
"""What is known of an op that has no line."""


def op_keys(canonical: str, native: str = "") -> Iterator[str]:
    """Yield the names by which a table may hold an op, the most exact one first.

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
