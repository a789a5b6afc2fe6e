"""What a lockstep run of two programs shows of an inserted node, in both frameworks."""

from collections.abc import Sequence
from dataclasses import replace

from amprewrite.measure.runs import Held, OpSample, bounded, is_equal
from amprewrite.plan import Decision

INSERTED = "inserted"
"""Class of nodes without a decision in the plan: they only pass values on."""


def inserted(
    name: str, native: str, dtypes: tuple[str, str], like: Decision | None = None
) -> Decision:
    """Return the decision about an inserted cast, as a row of a plan.

    Args:
        name: Its name in the whole program.
        native: Its name in the framework.
        dtypes: Dtypes of its operand and of its value.
        like: Decision with its place in the model; None for no place.
    """
    made = Decision(
        op=name,
        canonical="cast",
        native=native,
        op_class=INSERTED,
        precision=dtypes[1],
        rule=INSERTED,
        why="hands on a value in the dtype that the plan wants",
        operands=dtypes[:1],
        results=dtypes[1:],
    )
    return made if like is None else replace(made, path=like.path, source=like.source)


def inserted_sample(
    decision: Decision,
    source: Held,
    value: Held,
    limit: float | None,
    readers: Sequence[str] = (),
) -> OpSample:
    """Return the sample of an inserted node: its value, and its source.

    Masks may be clamped to the range of a dtype: values beyond it may become anything,
    and count as zero.

    Args:
        decision: Decision about the node.
        source: Its source.
        value: Its value, of the same shape.
        limit: Largest finite number of the dtype, if the source exceeds it; else None.
        readers: Names of the ops that read it.
    """
    same, ours = source, value
    if limit is not None:
        same, ours = (bounded(x, source, limit) for x in (source, value))
    return OpSample(
        op=decision.op,
        reference=(same,),
        actual=(ours,),
        alone=(ours,),
        exact=is_equal(ours, same),
        same=(same,),
        again=lambda _unit, _draw: (same,),
        decision=decision,
        whole=(source, value),
        readers=tuple(readers),
    )
