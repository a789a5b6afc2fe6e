"""Expected errors: from the formats, the lengths of contractions and the depth.

With roundings that are independent and centred, the error of ``k`` roundings in a row
grows with the root of ``k``: it stays below ``confidence * sqrt(k) * u`` with
probability ``1 - 2 exp(-confidence**2 / 2)``. A contraction of length ``n`` makes ``n``
roundings in the dtype that it accumulates in, and rounds its result once.

The bound holds for a well-conditioned program. A program that loses digits by
cancellation exceeds it, which deserves a report.

Source: Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM
J. Sci. Comput. 41(5), 2019, theorem 2.4 and section 3.
"""

from collections.abc import Mapping
from math import inf, isfinite, sqrt

from amprewrite.dtypes.formats import format_of
from amprewrite.ir import ProgramGraph
from amprewrite.measure import ORIGINAL
from amprewrite.plan import Plan

CONFIDENCE = 4.0
"""Multiple of the standard deviation; exceeded by chance in 7 of 10,000 cases."""

MULTIPLE = 4.0
"""Multiple of the predicted error that counts as explained by it."""

NOISE = 2.0
"""Multiple of the original's own error; no bound on a conversion is below it."""

LOW_BASELINES = ("autocast", "cast all")
"""Names of the baselines in the same low dtype."""

ZEROS = 0.9
"""Largest bound on a gradient: one of zeros has error 1.

A gradient with a larger error in the baselines may be as wrong as there.
"""

PASSES = 3
"""Chains that a gradient passes: the forward pass, and two products for each of its."""

ROUNDINGS = 3
"""Roundings that an op in low precision adds: of two operands and of its result."""


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next number: 2**-8 for bfloat16."""
    return 2.0 ** -format_of(dtype).precision


def tolerance(dtype: str, depth: int, length: int = 1, full: str = "float32") -> float:
    """Return the relative error to expect of a chain of ops.

    Args:
        dtype: Dtype that the ops compute in.
        depth: Number of ops in the chain.
        length: Longest contraction, in terms.
        full: Dtype in which contractions accumulate.
    """
    low = unit_roundoff(dtype) ** 2 * ROUNDINGS
    wide = unit_roundoff(full) ** 2 * length
    return CONFIDENCE * sqrt(depth * (low + wide))


def longest_chain(graph: ProgramGraph, lowered: frozenset[str]) -> int:
    """Return the largest number of ops of ``lowered`` on one path through ``graph``."""
    import networkx as nx  # noqa: PLC0415  # slow to load

    depth: dict[str, int] = {}
    for name in nx.topological_sort(graph.network):
        before = (depth[found] for found in graph.network.predecessors(name))
        depth[name] = max(before, default=0) + (name in lowered)
    return max(depth.values(), default=0)


def explained_error(
    predicted: float | None,
    baselines: Mapping[str, float],
    plan: Plan | None,
    graph: ProgramGraph | None,
) -> float | None:
    """Return the relative error of an output that the roundings of a plan explain.

    It is a multiple of the predicted error; if that is not known, of the best baseline
    in the same dtype. It is never more than formats and depth let expect of a
    well-conditioned program, so that a plan does not excuse a large error of its own,
    made by rounding where digits cancel.

    Args:
        predicted: First-order error of the outputs.
        baselines: Errors of the original and of the baselines.
        plan: The plan; None if the converted model has none.
        graph: The program, if it is known.

    Returns:
        None if nothing is known.
    """
    if plan is None:
        return None
    found = expected_error(plan, graph)
    best = min((baselines.get(name, inf) for name in LOW_BASELINES), default=inf)
    known = best if predicted is None or not isfinite(predicted) else predicted
    in_16_bits = plan.lowered and not _forward_formats(plan)
    if in_16_bits and found is not None and isfinite(known):
        found = min(found, MULTIPLE * known)
    floor = baselines.get(ORIGINAL)
    if found is None or floor is None or not isfinite(floor):
        return found
    return max(found, NOISE * floor)


def explained_gradient(
    baseline: float | None, original: float | None, deep: float | None
) -> float:
    """Return the relative error of a gradient that the roundings of a plan explain.

    It is a multiple of the error of the best baseline in the same dtype, in this
    gradient or in all of them together: gradients that cancel, as of weights before a
    batch norm, are as wrong there. It is less than the error of a gradient of zeros.

    Args:
        baseline: Error of the best baseline; None if none was run.
        original: Error of the original's gradient in its own dtype.
        deep: Error to expect of a gradient by formats and depth; None if unknown.
    """
    known = ZEROS if deep is None else deep
    if baseline is not None and isfinite(baseline):
        known = MULTIPLE * baseline
    floor = NOISE * original if original is not None and isfinite(original) else 0.0
    return max(min(known, max(baseline or 0.0, ZEROS)), floor)


def expected_gradient(plan: Plan | None, graph: ProgramGraph | None) -> float | None:
    """Return the error of a gradient to expect by formats and depth; None if unknown.

    Of contractions with 8-bit formats the coarsest counts, of operands or gradients.
    """
    found = expected_error(plan, graph)
    if plan is None or found is None:
        return None
    formats = {name for d in plan.quantised for name in (d.forward, d.backward) if name}
    if formats:
        coarse = max(map(unit_roundoff, formats))
        used = _forward_formats(plan).values()
        base = max(
            map(unit_roundoff, used), default=unit_roundoff(plan.low or plan.full)
        )
        found *= max(coarse / base, 1.0)
    return sqrt(PASSES) * found


def _forward_formats(plan: Plan) -> dict[str, str]:
    """Return the 8-bit formats of the operands of contractions, by op."""
    return {d.op: d.forward for d in plan.quantised if d.forward}


def expected_error(plan: Plan | None, graph: ProgramGraph | None) -> float | None:
    """Return the expected relative error of the outputs; None without a plan.

    Without a graph, all lowered ops count as one chain. A plan that lowers nothing has
    the expected error of its full dtype.
    """
    if plan is None:
        return None
    low = (d.op for d in plan.decisions if plan.low and d.precision == plan.low)
    formats = _forward_formats(plan)
    lowered = frozenset(formats or low)
    dtype = plan.low if lowered else plan.full
    if formats:
        dtype = max(formats.values(), key=unit_roundoff)
    chosen = lowered or frozenset(decision.op for decision in plan.decisions)
    if graph is None:
        return tolerance(dtype, len(chosen), full=plan.full)
    depth = longest_chain(graph, chosen)
    lengths = [op.contracted for op in graph.ops if op.contracted is not None]
    return tolerance(dtype, depth, max(lengths, default=1), plan.full)
