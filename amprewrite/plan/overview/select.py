"""Select decisions by the keys of rules, by class, precision and compound."""

from typing import TYPE_CHECKING, TypedDict

from amprewrite.dtypes import FORMATS, from_short_name
from amprewrite.errors import PlanMismatchError
from amprewrite.ir import Op
from amprewrite.ops.compounds import NAMES
from amprewrite.policy import OpClass
from amprewrite.policy.model import KEYS, key_matches

if TYPE_CHECKING:
    from amprewrite.plan.model import Decision, Plan


class Wanted(TypedDict, total=False):
    """Keys of a selection: those of a rule, and the decision's.

    Attributes:
        path: Module path or glob, as in a rule: a module means all that is in it.
        group: Glob over the group of the op, such as ``normalisation``.
        op: Glob over the canonical or native name.
        native: Glob over the native name.
        op_name: Glob over a decision's ``op``.
        source: Glob over ``file:line``.
        op_class: Class, such as ``deny``.
        precision: Dtype that the op computes in, long or short.
        compound: Compound that the op is a part of, or one call of it.
    """

    path: str
    group: str
    op: str
    native: str
    op_name: str
    source: str
    op_class: str
    precision: str
    compound: str


def select(plan: "Plan", wanted: Wanted) -> "tuple[Decision, ...]":
    """Return the decisions that match all that is wanted, in program order.

    Raises:
        TypeError: There is no such key.
        PlanMismatchError: There is no such class, dtype or compound.
    """
    if unknown := sorted(set(wanted) - set(Wanted.__annotations__)):
        keys = ", ".join(Wanted.__annotations__)
        msg = f"select() has no key {unknown[0]!r}; want some of {keys}"
        raise TypeError(msg)
    op_class, compound = wanted.get("op_class"), wanted.get("compound")
    _check("op_class", op_class, tuple(map(str, OpClass)))
    _check("compound", compound and compound.partition("#")[0], sorted(NAMES))
    precision = wanted.get("precision")
    dtype = precision and _dtype(plan, precision)
    globs = {key: str(glob) for key, glob in wanted.items() if key in KEYS}
    inside = None
    if compound is not None:
        calls = (c for c in plan.compounds if compound in (c.name, c.call))
        inside = {decision.op for call in calls for decision in call.ops}
    return tuple(
        decision
        for decision in plan.decisions
        if op_class in (None, decision.op_class)
        and dtype in (None, decision.precision)
        and (inside is None or decision.op in inside)
        and all(key_matches(k, glob, _as_op(decision)) for k, glob in globs.items())
    )


def _as_op(decision: "Decision") -> Op:
    """Return the op of a decision as far as rules look at it."""
    d = decision
    return Op(d.op, d.canonical, d.native, (), (), path=d.path, source=d.source)


def _dtype(plan: "Plan", text: str) -> str:
    """Return the long name of a dtype that a plan may have.

    Raises:
        PlanMismatchError: There is no such dtype.
    """
    found = from_short_name(text)
    _check("precision", found, (*FORMATS, *{d.precision for d in plan.decisions}))
    return found


def _check(key: str, found: str | None, known: "tuple[str, ...] | list[str]") -> None:
    """Check that a word is one that some plan may have.

    Raises:
        PlanMismatchError: It is not.
    """
    if found is None or found in known:
        return
    msg = f"select({key}={found!r}): want one of {', '.join(filter(None, known))}"
    raise PlanMismatchError(msg)
