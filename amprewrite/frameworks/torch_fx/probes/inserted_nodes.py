"""Compare inserted nodes and stored weights with the values that they replace.

Every inserted node passes on one of its operands, in another dtype, range or layout:
casts, clamps of masks, copies, parts of a list.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch.fx import Node

from amprewrite.dtypes import format_of
from amprewrite.frameworks.torch_fx.aten.dtypes import dtype_name
from amprewrite.frameworks.torch_fx.aten.source_location import module_path, source_line
from amprewrite.frameworks.torch_fx.probes.arrays import TensorValues
from amprewrite.frameworks.torch_fx.rewrite.quantise_op import OPERATOR
from amprewrite.measure.samples import OpSample
from amprewrite.measure.values.blocks import Bounded, blocks, is_equal
from amprewrite.plan import Decision

INSERTED = "inserted"
"""Class of nodes without a decision in the plan: they only pass values on."""


def inserted_sample(
    node: Node,
    name: str,
    made: object,
    handed: Sequence[torch.Tensor],
    limit: float,
) -> OpSample | None:
    """Return a sample of an inserted node's value and of its source.

    Args:
        node: The node.
        name: Its name in the whole program.
        made: Its value.
        handed: Its float operands.
        limit: Largest finite number of the low dtype; larger values may become
            anything, and count as zero.

    Returns:
        None if nothing can be compared: no float, or no operand of that shape.
    """
    if not isinstance(made, torch.Tensor) or not made.is_floating_point():
        return None
    alike = [tensor for tensor in handed if tensor.shape == made.shape]
    if not alike:
        return None
    found = TensorValues(made)
    handed_on = [TensorValues(tensor) for tensor in alike]
    if len(handed_on) > 1:
        wanted = min(handed_on, key=partial(_distance, found))
    else:
        (wanted,) = handed_on
    rounded = format_of(_format(node) or dtype_name(made.dtype))
    bound = min(limit, float(rounded.max))
    kept, same = found, wanted
    if wanted.exceeds(bound):
        kept, same = (Bounded(values, wanted, bound) for values in (found, wanted))
    dtypes = dtype_name(alike[0].dtype), rounded.name
    return OpSample(
        op=name,
        reference=(same,),
        actual=(kept,),
        alone=(kept,),
        exact=is_equal(kept, same),
        same=(same,),
        again=lambda _unit, _draw: (same,),
        decision=_decision(node, name, dtypes),
        whole=(wanted, found),
        readers=_readers(node, name),
    )


def is_rounded(held: object, wanted: object) -> bool:
    """Return whether a stored weight is the original's, rounded to its dtype."""
    if not (isinstance(held, torch.Tensor) and isinstance(wanted, torch.Tensor)):
        return True
    if held.layout != torch.strided or held.shape != wanted.shape:
        return True
    return torch.equal(held.detach(), wanted.detach().to(held.dtype))


def _distance(one: TensorValues, two: TensorValues) -> float:
    with np.errstate(invalid="ignore"):  # infinities have no distance
        return float(sum(np.nansum(abs(a - b)) for a, b in blocks(one, two)))


def _readers(node: Node, name: str) -> tuple[str, ...]:
    """Return the names in the whole program of the nodes that read ``node``."""
    prefix = name.removesuffix(node.name)
    return tuple(prefix + user.name for user in node.users if user.op != "output")


def _format(node: Node) -> str:
    """Return the 8-bit format to which an inserted node rounds; empty if to none."""
    return str(node.args[1]) if node.target is OPERATOR else ""


def _decision(node: Node, name: str, dtypes: tuple[str, str]) -> Decision:
    """Return the decision about an inserted node, as a row of a plan."""
    is_weight = node.op == "get_attr"
    native = f"stored {node.target}" if is_weight else str(node.target)
    return Decision(
        op=name,
        canonical="weight" if is_weight else "cast",
        native=native,
        op_class=INSERTED,
        precision=dtypes[1],
        rule=INSERTED,
        why="hands on a value in the dtype that the plan wants",
        path=module_path(node),
        source=source_line(node),
        operands=dtypes[:1],
        results=dtypes[1:],
    )
