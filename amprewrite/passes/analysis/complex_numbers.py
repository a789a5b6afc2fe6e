"""Refuse ops that truncate complex numbers to real ones, or that order them.

Flax and torch at most warn of truncation, and silently run attention or softmax on
complex numbers: the largest is chosen by real parts, and the result is meaningless
(FLIP 1777 asks for an error).
"""

from amprewrite.dtypes import FORMATS, Behaviour
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.ir import Op, ProgramGraph
from amprewrite.passes.analysis.classify import USER_CAST
from amprewrite.policy import Policy

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
