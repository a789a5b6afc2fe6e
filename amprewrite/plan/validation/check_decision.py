"""Consistency of one decision: class, precision, dtypes and accumulators."""

from collections.abc import Iterator

from amprewrite.ir import REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.ir.factors import factor_indices
from amprewrite.ops import Group
from amprewrite.plan.contracts.kernels import has_kernel
from amprewrite.plan.hardware.kernels import OPERAND
from amprewrite.plan.model import Decision, Plan
from amprewrite.policy import OpClass
from amprewrite.policy.contract import Contract


def decision_mistakes(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield the mistakes in the decision about ``op``."""
    counts = len(decision.operands), len(decision.results)
    if counts != (len(op.operands), len(op.results)):
        yield f"has dtypes for {counts[0]} operands and {counts[1]} results"
        return
    if decision.canonical != op.canonical:
        yield f"canonical is {decision.canonical!r}, and the op is {op.canonical}"
    names = (*op.operands, *op.results)
    dtypes = (*decision.operands, *decision.results)
    for name, dtype in zip(names, dtypes, strict=True):
        traced = graph.values[name].dtype
        if dtype != traced and not _may_become(traced, dtype, op, plan):
            yield f"%{name} of dtype {traced} cannot be {dtype!r}"
    yield from _precision(graph, op, decision, plan)
    yield from _contraction(op, decision, plan)
    yield from _formats(graph, op, decision, plan)


def _may_become(traced: str, dtype: str, op: Op, plan: Plan) -> bool:
    """Return whether a value may be stored in another dtype than it was traced with."""
    if op.reads:
        return dtype in op.reads
    pair = (plan.low, plan.full)
    return bool(plan.low) and traced in pair and dtype in pair


def _precision(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield contradictions between class, precision, and operand and result dtypes."""
    precision, op_class = decision.precision, decision.op_class
    if op.fence and op_class != OpClass.KEEP:
        yield f"is {op_class}, and must not be touched: {op.fence}"
    if op.reads:
        yield from _promoted(op, decision)
    elif op_class == OpClass.KEEP or not plan.low:
        known = {*decision.operands, *decision.results}
        if precision not in known and (known or precision):
            yield f"is keep and computes in {precision!r}, which it has not"
    elif precision not in (plan.low, plan.full):
        yield f"computes in {precision!r}; want {plan.low} or {plan.full}"
    elif op_class == OpClass.DENY and precision != plan.full:
        yield f"is deny and computes in {precision}; want {plan.full}"
    elif op.canonical == "cast" or op.canonical in REGION_BOUNDARIES:
        if decision.results and precision != decision.results[0]:
            yield f"makes {decision.results[0]} and computes in {precision}"
    else:
        yield from _read(graph, op, decision, plan)
        yield from _made(graph, op, decision, plan)


def _promoted(op: Op, decision: Decision) -> Iterator[str]:
    if decision.operands != op.reads:
        found, want = ", ".join(decision.operands), ", ".join(op.reads)
        yield f"reads {found}, and its operands promote to {want}"
    if decision.precision not in op.reads:
        yield f"computes in {decision.precision!r}, which it does not read"


def _read(graph: ProgramGraph, op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield operands of another dtype than the computing dtype of the op."""
    rows = enumerate(zip(op.operands, decision.operands, strict=True))
    placed = [(i, dtype) for i, (n, dtype) in rows if graph.is_dtype(n, plan.full)]
    read = [dtype for index, dtype in placed if index not in op.mutates]
    wrong = dict.fromkeys(dtype for dtype in read if dtype != decision.precision)
    first = next((dtype for _, dtype in placed), "")  # it leads where it is written too
    leads = op.operand_rule == "lead" and first == decision.precision
    if wrong and not leads:
        yield f"computes in {decision.precision} and reads {', '.join(wrong)}"


def _made(graph: ProgramGraph, op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield results of a dtype that the op cannot make."""
    precision = decision.precision
    pairs = zip(op.results, decision.results, strict=True)
    made = dict.fromkeys(
        dtype
        for name, dtype in pairs
        if graph.is_dtype(name, plan.full) and dtype != precision
    )
    sums = op.accumulates and precision == plan.low
    rounded = precision == plan.full and decision.op_class == OpClass.PROMOTE
    allowed = sums or rounded or op.mutates or op.traits.group == Group.LOOKUP
    if made and not allowed:
        yield f"computes in {precision} and makes {', '.join(made)}"


def _formats(
    graph: ProgramGraph, op: Op, decision: Decision, plan: Plan
) -> Iterator[str]:
    """Yield 8-bit formats that the op cannot have."""
    if not decision.quantises:
        if decision.scaling:
            yield f"has scaling {decision.scaling!r}, and no 8-bit format"
        if decision.kernel:
            yield f"has kernel {decision.kernel!r}, and no 8-bit format"
        return
    indices = factor_indices(op)
    if not indices or op.fence or op.mutates:
        yield "has an 8-bit format, and is no contraction that may be touched"
    elif not all(graph.is_dtype(op.operands[i], plan.full) for i in indices):
        yield f"has an 8-bit format, and multiplies operands that are not {plan.full}"
    if not decision.scaling:
        yield "has an 8-bit format, and no scaling; want none or current"
    formats = Contract(decision.forward, decision.backward, kernel="auto")
    if decision.kernel and not has_kernel(graph, op, formats, plan.full):
        yield f"has kernel {decision.kernel!r}, which takes no such op or formats"


def _contraction(op: Op, decision: Decision, plan: Plan) -> Iterator[str]:
    """Yield accumulator and derivative dtypes that the op cannot have."""
    found = decision.accumulator, decision.derivative, decision.derivative_accumulator
    precision, (result, *_) = decision.precision, (*decision.results, "")
    kept = decision.op_class == OpClass.KEEP or not plan.low
    contracts = op.accumulates or op.contracted is not None
    if kept or not contracts or result not in (plan.low, plan.full):
        if any(found):
            yield "has sums or a derivative of its own, and is no contraction"
        return
    if not op.accumulates:
        want = (result, precision, OPERAND)
        if found != want:
            yield f"sums and derivative are {found}; the framework has {want}"
        return
    if decision.accumulator not in {result, plan.full}:
        yield f"hands over {decision.accumulator!r} for a result of {result}"
    if decision.derivative not in {precision, plan.low}:
        yield f"computes in {precision}, differentiated in {decision.derivative!r}"
    low = decision.derivative == plan.low
    sums = {OPERAND, plan.low, plan.full} if low else {OPERAND}
    if decision.derivative_accumulator not in sums:
        yield f"its derivatives hand over {decision.derivative_accumulator!r}"
