"""Multiply-adds and shapes of contractions."""

from dataclasses import dataclass
from math import isqrt, prod

from amprewrite.ir import Op, ProgramGraph, Value
from amprewrite.ops import Group
from amprewrite.plan.hardware.calibration import Kind

ROWS_UNKNOWN = 64
"""Rows assumed for a product with a symbolic extent: neither thin nor large.

The number of multiply-adds still counts that extent as one.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A contraction as a batch of equal matrix products.

    Attributes:
        kind: Kind of kernel.
        macs: Multiply-adds of all products.
        batches: Number of products.
        thin: Smallest of the three extents of one product.
        elements: Number of elements read and written.
    """

    kind: Kind
    macs: int
    batches: int
    thin: int
    elements: int


def multiplications(graph: ProgramGraph, op: Op) -> int:
    """Return the multiply-adds of a contraction; a symbolic extent counts as one.

    If the contracted length is not known, attention counts as two products over the
    length of the keys, and any other op as one matrix product: the root of the product
    of the sizes of its operands and its result.
    """
    values = graph.values
    made = sum(values[name].elements for name in op.results[:1])
    if op.contracted is not None:
        return made * op.contracted
    floats = [values[name] for name in op.operands if values[name].is_float]
    if (
        op.traits.group == Group.ATTENTION
        and len(floats) > 1
        and len(floats[1].shape) > 1
    ):
        length = floats[1].shape[-2]
        return 2 * floats[0].elements * (length if isinstance(length, int) else 1)
    sizes = [value.elements for value in floats[:2]]
    return isqrt(made * sizes[0] * sizes[1]) if len(sizes) > 1 else made


def work_of(graph: ProgramGraph, op: Op) -> Work:
    """Return the products that a contraction consists of.

    The extents of a product follow from the sizes of its operands and its result and
    the contracted length. Where that is not known, they are guessed as equal.
    """
    macs = max(multiplications(graph, op), 1)
    read = map(graph.values.__getitem__, op.operands)
    values = [value for value in read if value.is_float]
    made = graph.values[op.results[0]] if op.results else None
    elements = sum(value.elements for value in (*values, *([made] if made else ())))
    factors = values[1:3] if op.traits.addend_first else values[:2]
    if op.traits.group == Group.ATTENTION and values and len(values[0].shape) > 1:
        shape = values[0].shape
        heads = prod(extent for extent in shape[:-2] if isinstance(extent, int))
        thin = min(_known(shape[-2]), _known(shape[-1]))
        return Work("attention", macs, max(heads, 1), thin, elements)
    convolves = op.traits.group == Group.CONVOLUTION
    kind: Kind = "convolution" if convolves else "product"
    length = op.contracted
    if not length or made is None or len(factors) != 2:  # noqa: PLR2004  # a pair
        return Work(kind, macs, 1, max(round(macs ** (1 / 3)), 1), elements)
    one, other = factors
    unknown = any(isinstance(d, str) for v in (one, other, made) for d in v.shape)
    if kind == "convolution":
        columns = max(other.elements // length, 1)
        rows = max(made.elements // columns, 1)
        batches = 1
    else:
        batches = _batches(one, other, made, length)
        rows = max(one.elements // (length * batches), 1)
        columns = max(other.elements // (length * batches), 1)
    if unknown:
        rows, columns = max(rows, ROWS_UNKNOWN), max(columns, ROWS_UNKNOWN)
    kind = "batched" if batches > 1 else kind
    return Work(kind, macs, batches, min(rows, columns, length), elements)


def _batches(one: Value, other: Value, made: Value, length: int) -> int:
    """Return the number of products: ``bmk * bkn / (k * k * bmn)`` is ``b``."""
    pairs = one.elements * other.elements
    return max(pairs // max(length * length * made.elements, 1), 1)


def _known(extent: int | str) -> int:
    return extent if isinstance(extent, int) else ROWS_UNKNOWN
