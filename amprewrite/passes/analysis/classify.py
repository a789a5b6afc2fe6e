"""Classify ops: by the policy, or by facts that overrule it."""

from dataclasses import replace
from functools import lru_cache
from math import frexp

from amprewrite.dtypes import FORMATS, Behaviour, is_float
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.ir import ABS_SQUARE, REGION_BOUNDARIES, Op, ProgramGraph
from amprewrite.policy import Matcher, OpClass, Policy, Reason
from amprewrite.policy.match import Match
from amprewrite.policy.model import ALLOW, DENY, FOLLOW, KEEP, PROMOTE

USER_CAST = "cast"
"""Canonical name of a change of dtype that is written in the model."""

SCALE = "scale"
"""Canonical name of the factors of unit scaling: one forward, one backward."""

MOVES = {"enter": FOLLOW, "leave": FOLLOW}
"""Classes of ops at region boundaries; others keep their dtype."""

_PASSED = {
    "carry": "a carry of a loop keeps its dtype",
    "enter": "a value that enters a body has the dtype of the body",
    "leave": "branches give one dtype",
    "boundary": "a custom rule is written for one dtype",
}
"""Reasons for casts of values that enter or leave a body."""


@lru_cache(maxsize=1024)
def _match(op_class: OpClass, reason: Reason, why: str) -> Match:
    """Return a class that does not come from the policy; many ops have the same."""
    return Match(op_class, reason, str(reason), why)


def classify(graph: ProgramGraph, matcher: Matcher) -> dict[str, Match]:
    """Return the class of every op of ``graph``, by op name."""
    if not matcher.policy.low:
        why = f"policy {matcher.policy.name} lowers nothing"
        kept = _match(KEEP, Reason.LOWERS_NOTHING, why)
        return {op.name: _promoted(graph, op) or kept for op in graph.ops}
    return {op.name: _classify_op(graph, op, matcher) for op in graph.ops}


def _classify_op(graph: ProgramGraph, op: Op, matcher: Matcher) -> Match:
    full = matcher.policy.full
    if lowers_promoted(op, matcher.policy):
        return _classify_promoted(graph, op, matcher)
    if (found := _by_kind(graph, op, full)) is not None:
        return found
    found = _exact_scale(op, _asked(op, matcher.match(op)), matcher.policy.low)
    if (untouched := _untouched(graph, op, full)) is not None:
        return untouched
    foreign = _foreign_operand(graph, op, full)
    if foreign and found.op_class is not KEEP:
        why = f"%{foreign} is {graph.values[foreign].dtype}: the model chose its dtypes"
        return _match(KEEP, Reason.DTYPE, why)
    names_own = op.dtype_argument and op.chosen != "follows"
    if names_own and op.operand_rule != "any" and _reads_floats(graph, op):
        return _named_dtype(op, found, full)
    return _of_written(graph, op, _without_contraction(op, found))


def _reads_floats(graph: ProgramGraph, op: Op) -> bool:
    return any(graph.values[name].is_float for name in op.operands)


def lowers_promoted(op: Op, policy: Policy) -> bool:
    """Return whether ``policy`` lowers an op with operands promoted to full.

    Written storages, and values that enter or leave a body, keep their dtype.
    """
    if not policy.low or not op.reads or op.fence or op.mutates:
        return False
    rule = OP_RULES.get(op.canonical)
    written = rule is not None and rule.behaviour is Behaviour.FOLLOW_SELF
    if written or op.canonical in REGION_BOUNDARIES or op.canonical == ABS_SQUARE:
        return False
    floats = {d for d in op.reads if is_float(d) or d.startswith("complex")}
    return floats == {policy.full}


def _classify_promoted(graph: ProgramGraph, op: Op, matcher: Matcher) -> Match:
    """Return the class of an op that computes in full after promotion.

    It is the class of the same op on full operands: an allow op is low even if one
    operand was low from the start. A keep op reads them promoted.
    """
    found = _without_contraction(op, _asked(op, matcher.match(op)))
    if op.dtype_argument and op.chosen != "follows":
        found = _named_dtype(op, found, matcher.policy.full)
    found = _of_written(graph, op, found)
    promoted = _promoted(graph, op)
    why = promoted.why if promoted else ""
    if found.op_class is KEEP:
        return _match(DENY, Reason.PROMOTION, why)
    return replace(found, why=f"{found.why}; {why}")


def _promoted(graph: ProgramGraph, op: Op) -> Match | None:
    """Return the class of an op changed by promotion; None for others."""
    if op.canonical == ABS_SQUARE:
        why = "the norm of complex numbers sums |x|^2, real^2 + imag^2, and not x*x"
        return _match(KEEP, Reason.PROMOTION, why)
    if not op.reads:
        return None
    traced = [graph.values[name].dtype for name in op.operands]
    pairs = list(zip(traced, op.reads, strict=True))
    changed = dict.fromkeys(read for old, read in pairs if read != old)
    joined = dict.fromkeys(old for old, read in pairs if read in changed)
    wanted = " and ".join(changed)
    rule = OP_RULES.get(op.canonical)
    if op.canonical in REGION_BOUNDARIES:
        narrow = dict.fromkeys(old for old, read in pairs if read != old)
        passed = _PASSED[op.canonical]
        why = f"{' and '.join(narrow)} to {wanted}: {passed}"
    elif rule and rule.behaviour is Behaviour.FOLLOW_SELF:
        why = f"the tensor written into keeps its dtype, {wanted}"
    else:
        why = f"{' and '.join(joined)} promote to {wanted}"
    return _match(PROMOTE, Reason.PROMOTION, why)


def _by_kind(graph: ProgramGraph, op: Op, full: str) -> Match | None:
    """Return the class of an op that no policy decides; None for others."""
    if (promoted := _promoted(graph, op)) is not None:
        return promoted
    if op.fence:
        return _match(KEEP, Reason.FENCE, op.fence)
    follows = op.chosen == "follows" and op.dtype_argument == full
    if op.canonical == USER_CAST and follows:
        why = "written in the model after another tensor's dtype, which it follows"
        return _match(FOLLOW, Reason.USER_CAST, why)
    if op.canonical == USER_CAST:
        why = "written in the model: never altered"
        return _match(KEEP, Reason.USER_CAST, why)
    if op.canonical in REGION_BOUNDARIES:
        op_class = MOVES.get(op.canonical, KEEP)
        passes = _match(op_class, Reason.BODY, REGION_BOUNDARIES[op.canonical])
        moves = op_class is FOLLOW
        return (moves and _untouched(graph, op, full)) or passes
    return None


def _untouched(graph: ProgramGraph, op: Op, full: str) -> Match | None:
    """Return the class of an op without ``full`` values; None for others."""
    for name in (*op.results, *op.operands):
        if graph.values[name].dtype == full:
            return None
    why = f"touches no {full}; nothing else is lowered"
    return _match(KEEP, Reason.DTYPE, why)


def _asked(op: Op, found: Match) -> Match:
    """Return the class that a marker in the model asks for, before any rule."""
    moves = (KEEP, FOLLOW)
    if not op.asked or found.op_class in moves:
        return found
    op_class = DENY if op.asked == "full" else ALLOW
    why = f"the model asks for {op.asked} precision here"
    return _match(op_class, Reason.MARKER, why)


def _exact_scale(op: Op, found: Match, low: str) -> Match:
    """Return class follow for a scale by powers of two, unless a rule says otherwise.

    The product rounds nothing in the normal range of the low dtype. A factor that is
    computed from an extent is no literal: it is not known to be exact.
    """
    if op.canonical != SCALE or found.op_class is not PROMOTE:
        return found
    directions = 2
    exact = all(_is_power_of_two(factor, low) for factor in op.literals)
    if found.reason.is_rule or len(op.literals) != directions or not exact:
        return found
    why = "its factors are powers of two, which round nothing"
    return _match(FOLLOW, Reason.EXACT_FACTOR, why)


def _is_power_of_two(factor: float, low: str) -> bool:
    """Return whether ``factor`` is a power of two among the normal numbers of a dtype.

    Its sign may be any.
    """
    size, held = abs(factor), FORMATS[low]
    half = 0.5  # the mantissa of every power of two
    return frexp(size)[0] == half and held.smallest_normal <= size <= held.max


def _of_written(graph: ProgramGraph, op: Op, found: Match) -> Match:
    """Return class follow for a view of a written storage, before any rule.

    In another dtype it would be a copy, and writes to it would be lost.
    """
    if not graph.written or op.mutates or found.op_class is KEEP:
        return found
    read = {graph.storage(name) for name in op.operands} & graph.written
    if not any(graph.storage(name) in read for name in op.results):
        return found
    why = "a view of a value written in place: a cast would make it a copy"
    return replace(found, op_class=FOLLOW, why=why)


def _named_dtype(op: Op, found: Match, full: str) -> Match:
    """Return the class that a ``dtype=`` argument in the model requires."""
    why = f"the model writes dtype={op.dtype_argument}"
    op_class = DENY if op.dtype_argument == full else KEEP
    if found.op_class is op_class:
        return found
    return _match(op_class, Reason.DTYPE_ARGUMENT, why)


def _foreign_operand(graph: ProgramGraph, op: Op, full: str) -> str | None:
    """Return an operand that is float or complex in another dtype than full."""
    for name in op.operands:
        dtype = graph.values[name].dtype
        if dtype != full and (is_float(dtype) or dtype.startswith("complex")):
            return name
    return None


def _without_contraction(op: Op, found: Match) -> Match:
    """Return class deny for an outer product, such as positions times frequencies.

    Nothing is summed, so low precision saves nothing and costs the whole error. A
    rotary embedding made by a matmul over one element had error 0.66.
    """
    lengthless = op.contracted is not None and op.contracted <= 1
    if found.op_class is not ALLOW or not lengthless:
        return found
    if found.reason.is_rule:
        return found
    why = "contracts no dimension: an outer product gains nothing from low precision"
    return _match(DENY, Reason.OUTER_PRODUCT, why)


# Refuse ops that truncate complex numbers to real ones, or that order them.
#
# Flax and torch at most warn of truncation, and silently run attention or softmax on
# complex numbers: the largest is chosen by real parts, and the result is meaningless
# (FLIP 1777 asks for an error).

_ASKS = (Behaviour.BOOL, Behaviour.FIXED)
"""Behaviours of ops with results other than numbers: comparisons, positions."""


def refuse_complex(graph: ProgramGraph, policy: Policy) -> None:
    """Check that complex numbers are neither ordered nor truncated.

    Raises:
        PromotionError: An op puts complex numbers in order.
        ComplexTruncationError: An op drops the imaginary part: a cast, a ``dtype=`` or
            a write into real numbers. ``policy`` may allow that.
    """
    if not any(is_complex(d) for d in {v.dtype for v in graph.values.values()}):
        return
    for op in graph.ops:
        found = [d for n in op.operands if is_complex(d := graph.values[n].dtype)]
        if found and op.traits.orders:
            msg = (
                f"{_place(op)}: found an operand of {found[0]}; want real numbers, "
                f"which have an order: take the absolute value or the real part first"
            )
            raise PromotionError(msg)
        target = _real_target(graph, op) if found else ""
        if target and not policy.truncate_complex:
            msg = (
                f"{_place(op)}: found a cast of {found[0]} to {target}: it "
                f"drops the imaginary part; want a complex dtype: take the real part "
                f"or the absolute value first, or let the policy allow it: "
                f"[promotion] truncate_complex = true"
            )
            raise ComplexTruncationError(msg)
    if not policy.truncate_complex:
        _refuse_truncated_states(graph)


def _real_target(graph: ProgramGraph, op: Op) -> str:
    """Return the real dtype that ``op`` casts complex operands to; empty if none.

    A cast to bool drops no part: it is whether either part is not zero.
    """
    found = ""
    rule = OP_RULES.get(op.canonical)
    if op.canonical == USER_CAST:
        found = op.dtype_argument
    elif rule is not None and not rule.real and rule.behaviour not in _ASKS:
        follows = rule.behaviour is Behaviour.FOLLOW_SELF
        written = {*op.mutates, *((0,) if follows else ())}
        found = next((graph.values[op.operands[i]].dtype for i in written), "")
        if op.dtype_argument and op.operand_rule != "any":  # which reads metadata alone
            found = op.dtype_argument
    keeps = found not in FORMATS or found == "bool" or is_complex(found)
    return "" if keeps else found


def _refuse_truncated_states(graph: ProgramGraph) -> None:
    """Check that no state of real numbers is replaced by complex ones.

    Raises:
        ComplexTruncationError: Names the state.
    """
    for index, name in graph.states:
        new, stored = graph.values[graph.outputs[index]], graph.values[name]
        if is_complex(new.dtype) and not is_complex(stored.dtype):
            maker = graph.producer.get(new.name)
            where = f"{maker.source}: " if maker and maker.source else ""
            msg = (
                f"{where}state %{name}: found {new.dtype} for a state of "
                f"{stored.dtype}: to keep that dtype drops the imaginary part; want a "
                f"state that holds it: initialise it as {new.dtype}, or let the policy "
                f"allow it: [promotion] truncate_complex = true"
            )
            raise ComplexTruncationError(msg)


def is_complex(dtype: str) -> bool:
    """Return whether ``dtype`` names complex numbers."""
    return dtype.startswith("complex")


def _place(op: Op) -> str:
    """Return the location of an op: the line of the user, the module, and the op."""
    return ": ".join(part for part in (op.source, op.path, op.canonical) if part)
