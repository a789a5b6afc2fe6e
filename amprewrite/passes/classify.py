"""Give every op its class; the policy says it, a few facts overrule it."""

from dataclasses import replace

from amprewrite.dtypes import Behaviour, is_float
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.ir import ABS_SQUARE, CROSSINGS, Op, ProgramGraph
from amprewrite.plan import OUTER_PRODUCT, PROMOTION
from amprewrite.policy import Matcher, OpClass
from amprewrite.policy.match import Match

USER_CAST = "cast"
"""Canonical name of a change of dtype that is written in the model."""

MOVES = {"enter": OpClass.FOLLOW, "leave": OpClass.FOLLOW}
"""Classes of ops between bodies; those that are not here keep their dtype."""

_PASSED = {
    "carry": "what a loop carries keeps its dtype",
    "enter": "what passes into a body has the dtype of the body",
    "leave": "branches give one dtype",
    "boundary": "a custom rule is written for one dtype",
}
"""Why a value is cast where it passes into a body or out of it."""

OVERRIDABLE = ("overrides", "rules")
"""Prefixes of rule labels that the user wrote; facts about cost leave them alone."""


def classify(graph: ProgramGraph, matcher: Matcher) -> dict[str, Match]:
    """Return the class of every op of ``graph``, by op name."""
    if not matcher.policy.low:
        why = f"policy {matcher.policy.name} lowers nothing"
        kept = Match(OpClass.KEEP, "policy", why)
        return {op.name: _promoted(graph, op) or kept for op in graph.ops}
    return {op.name: _classify_op(graph, op, matcher) for op in graph.ops}


def _classify_op(graph: ProgramGraph, op: Op, matcher: Matcher) -> Match:
    full = matcher.policy.full
    if (settled := _by_kind(graph, op, full)) is not None:
        return settled
    found = _asked(op, matcher.match(op))
    names = (*op.operands, *op.results)
    if not any(graph.is_dtype(name, full) for name in names):
        return Match(
            OpClass.KEEP, "dtype", f"touches no {full}; nothing else is lowered"
        )
    foreign = _foreign_operand(graph, op, full)
    if foreign and found.op_class is not OpClass.KEEP:
        why = f"%{foreign} is {graph.values[foreign].dtype}: the model chose its dtypes"
        return Match(OpClass.KEEP, "dtype", why)
    names_own = op.dtype_argument and op.chosen != "follows"
    if names_own and graph.float_operands(op) and op.mixing != "any":
        return _named_dtype(op, found, full)
    return _of_written(graph, op, _without_contraction(op, found))


def _promoted(graph: ProgramGraph, op: Op) -> Match | None:
    """Return the class of an op that promotion changed; None for others."""
    if op.canonical == ABS_SQUARE:
        why = "the norm of complex numbers sums |x|^2, real^2 + imag^2, and not x*x"
        return Match(OpClass.KEEP, PROMOTION, why)
    if not op.reads:
        return None
    traced = [graph.values[name].dtype for name in op.operands]
    pairs = list(zip(traced, op.reads, strict=True))
    changed = dict.fromkeys(read for old, read in pairs if read != old)
    joined = dict.fromkeys(old for old, read in pairs if read in changed)
    wanted = " and ".join(changed)
    rule = OP_RULES.get(op.canonical)
    if op.canonical in CROSSINGS:
        narrow = dict.fromkeys(old for old, read in pairs if read != old)
        passed = _PASSED[op.canonical]
        why = f"{' and '.join(narrow)} to {wanted}: {passed}"
    elif rule and rule.behaviour is Behaviour.FOLLOW_SELF:
        why = f"what is written into keeps its dtype, {wanted}"
    else:
        why = f"{' and '.join(joined)} promote to {wanted}"
    return Match(OpClass.PROMOTE, PROMOTION, why)


def _by_kind(graph: ProgramGraph, op: Op, full: str) -> Match | None:
    """Return the class of an op that no policy decides about; None for others."""
    if (promoted := _promoted(graph, op)) is not None:
        return promoted
    if op.fence:
        return Match(OpClass.KEEP, "fence", op.fence)
    follows = op.chosen == "follows" and op.dtype_argument == full
    if op.canonical == USER_CAST and follows:
        why = "written in the model after another tensor's dtype, which it follows"
        return Match(OpClass.FOLLOW, "user cast", why)
    if op.canonical == USER_CAST:
        return Match(OpClass.KEEP, "user cast", "written in the model: never altered")
    if op.canonical in CROSSINGS:
        op_class = MOVES.get(op.canonical, OpClass.KEEP)
        return Match(op_class, "body", CROSSINGS[op.canonical])
    return None


def _asked(op: Op, found: Match) -> Match:
    """Follow a marker in the model before any rule: it stands closest to the op."""
    moves = (OpClass.KEEP, OpClass.FOLLOW)
    if not op.asked or found.op_class in moves:
        return found
    op_class = OpClass.DENY if op.asked == "full" else OpClass.ALLOW
    return Match(op_class, "marker", f"the model asks for {op.asked} precision here")


def _of_written(graph: ProgramGraph, op: Op, found: Match) -> Match:
    """Let a view of what is written in place follow, whatever a rule says.

    Read in another dtype it would be a copy, and what is written to it would be lost.
    """
    if not graph.written or op.mutates or found.op_class is OpClass.KEEP:
        return found
    read = {graph.storage(name) for name in op.operands} & graph.written
    if not any(graph.storage(name) in read for name in op.results):
        return found
    why = "a view of what is written in place: a cast would make it a copy"
    return replace(found, op_class=OpClass.FOLLOW, why=why)


def _named_dtype(op: Op, found: Match, full: str) -> Match:
    """Respect a ``dtype=`` that the model writes, such as softmax(dtype=float32)."""
    why = f"the model writes dtype={op.dtype_argument}"
    op_class = OpClass.DENY if op.dtype_argument == full else OpClass.KEEP
    return (
        found if found.op_class is op_class else Match(op_class, "dtype argument", why)
    )


def _foreign_operand(graph: ProgramGraph, op: Op, full: str) -> str | None:
    """Return an operand that computes in another float or complex dtype than full."""
    for name in op.operands:
        dtype = graph.values[name].dtype
        if dtype != full and (is_float(dtype) or dtype.startswith("complex")):
            return name
    return None


def _without_contraction(op: Op, found: Match) -> Match:
    """Keep an outer product full, such as positions times frequencies.

    Nothing is summed, so low precision saves nothing and costs the whole error.
    Measured: a rotary embedding made by a matmul over one element had error 0.66.
    """
    lengthless = op.contracted is not None and op.contracted <= 1
    if found.op_class is not OpClass.ALLOW or not lengthless:
        return found
    if found.rule.startswith(OVERRIDABLE):
        return found
    why = "contracts no dimension: an outer product gains nothing from low precision"
    return replace(found, op_class=OpClass.DENY, rule=OUTER_PRODUCT, why=why)
