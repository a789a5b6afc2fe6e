"""The values that the derivative of an op reads."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from amprewrite.dtypes import is_float
from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph

LINEAR_GROUPS = frozenset(
    (
        "average_pool",
        "cast",
        "collective_sum",
        "comparison",
        "control",
        "dropout",  # keeps a mask of its own
        "factory",
        "interpolation",
        "lookup",
        "metadata",
        "movement",
        "random",
        "rounding",
        "scatter_sum",
        "selection",
        "sign",
    )
)
"""Groups with a derivative that reads no floats: constant, or zero.

It may read indices and masks.
"""

LINEAR_OPS = frozenset(
    (
        "add",
        "sub",
        "rsub",
        "neg",
        "deg2rad",
        "rad2deg",
        "mean",
        "nanmean",
        "sum",
        "cumsum",
        "nansum",
        "sum_to_size",
        "trace",
        "add_any",
    )
)
"""Ops of other groups with such a derivative."""

BILINEAR_GROUPS = frozenset(("contraction", "convolution", "product"))
"""Groups with derivatives by one operand that read the other operands."""

BY_RESULT = frozenset(
    (
        "exp",
        "exp2",
        "tanh",
        "sigmoid",
        "logistic",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "softmax",
        "log_softmax",
        "relu",
        "cbrt",
    )
)
"""Ops with a derivative that is a function of the result: exp' is exp."""

ALSO_RESULT = frozenset(("attention", "extremum", "norm", "recurrent"))
"""Groups with a derivative that reads operands and results."""


def gradient_passes(graph: ProgramGraph) -> frozenset[str]:
    """Return the float values that depend on a float input or parameter."""
    reached = {v.name for v in graph.inputs("parameter", "input") if v.is_float}
    for op in graph.ops:
        if op.canonical != "detach" and not reached.isdisjoint(op.operands):
            reached.update(name for name in op.results if graph.values[name].is_float)
    return frozenset(reached)


def read_by_derivative(
    graph: ProgramGraph, op: Op, reached: AbstractSet[str]
) -> Iterator[int | str]:
    """Yield the operands and results that the derivative of an op reads.

    Frameworks may read less. A value that they read beyond this is computed again, or
    kept, as if the forward pass alone read it.

    Args:
        graph: The program.
        op: The op.
        reached: The values that gradients pass, see :func:`gradient_passes`.

    Yields:
        Indices of operands, and names of results.
    """
    passes = [name in reached for name in op.operands]
    if not any(passes) or reached.isdisjoint(op.results):
        return
    if op.canonical in REGION_BOUNDARIES:
        return
    for index, name in enumerate(op.operands):
        if not _is_smooth(graph, name):
            yield index  # an index, a mask
    yield from _smooth_reads(graph, op, passes)


def _smooth_reads(
    graph: ProgramGraph, op: Op, passes: list[bool]
) -> Iterator[int | str]:
    """Yield the floats that a derivative reads.

    Args:
        graph: The program.
        op: The op.
        passes: For each operand, whether gradients pass it.
    """
    group = op.traits.group
    if group in LINEAR_GROUPS or op.canonical in LINEAR_OPS:
        return
    if group in BILINEAR_GROUPS or op.canonical == "mul":
        for index, name in enumerate(op.operands):
            others = passes[:index] + passes[index + 1 :]
            if _is_smooth(graph, name) and any(others):
                yield index
        return
    if op.canonical in BY_RESULT or group in ALSO_RESULT:
        yield from op.results
    if op.canonical not in BY_RESULT:
        yield from (i for i, n in enumerate(op.operands) if _is_smooth(graph, n))


def _is_smooth(graph: ProgramGraph, name: str) -> bool:
    """Return whether a value is of floats or complex numbers."""
    dtype = graph.values[name].dtype
    return is_float(dtype) or dtype.startswith("complex")
