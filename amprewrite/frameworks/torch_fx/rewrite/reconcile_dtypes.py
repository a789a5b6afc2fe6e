"""Compare the dtypes of a plan with those of the kernels, and fix differences.

The plan predicts the dtype of every result. For ops of the tables the prediction is
right, and a test checks it; an op that a user's rule lowers may have a kernel that
always returns float32, or none for the low dtype. Then the op gets the operands it was
traced with, or its result is cast, and a warning in the plan says so.
"""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.dtypes import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.compat import pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.compat.settings import quiet
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.rewrite.write import retype
from amprewrite.ir import Op
from amprewrite.plan import Decision, Plan

aten = torch.ops.aten

Outcome = tuple[torch.dtype, ...] | str
"""Dtypes of the results, or the message of a kernel that refused."""


def reconcile(reading: Reading, plan: Plan) -> tuple[str, ...]:
    """Fix the written graph where a kernel differs from the plan; return warnings.

    Each distinct call (op, dtypes, numbers) is tried once on fake tensors.
    """
    tried: dict[object, Outcome] = {}
    return tuple(_reconciled(reading, plan, tried))


def _reconciled(
    reading: Reading, plan: Plan, tried: dict[object, Outcome]
) -> Iterator[str]:
    for op in reading.graph.ops:
        node, decision = reading.sites[op.name].node, plan.by_op[op.name]
        if op.fence or not _changed(reading, op, decision):
            continue
        key = _key(node)
        if key not in tried:
            tried[key] = _try(node)
        outcome = tried[key]
        refusal = outcome if isinstance(outcome, str) else ""
        if isinstance(outcome, str):
            _restore_operands(reading, op, node)
            outcome = tuple(
                torch_dtype(reading.graph.values[r].dtype) for r in op.results
            )
        wanted = tuple(torch_dtype(dtype) for dtype in decision.results)
        names = ", ".join(_cast_results(node, outcome, wanted))
        if names:
            retype(node, tuple(map(dtype_name, outcome)))
        if refusal:
            cast = "; its result is cast" if names else ""
            yield f"{op.name} ({op.native}) runs as traced: {refusal}{cast}"
        elif names:
            yield f"{op.name} ({op.native}) gives {names}; its result is cast"


def _changed(reading: Reading, op: Op, decision: Decision) -> bool:
    names = (*op.operands, *op.results)
    planned = (*decision.operands, *decision.results)
    values = reading.graph.values
    return any(values[n].dtype != d for n, d in zip(names, planned, strict=True))


def _key(node: Node) -> object:
    """Return a key of the facts that determine a call's result dtypes."""
    operands: list[object] = []

    def note(used: Node) -> None:
        val = used.meta.get("val")
        is_tensor = isinstance(val, torch.Tensor)
        operands.append((val.dtype, val.ndim) if is_tensor else repr(val))

    rest = torch.fx.map_arg((node.args, dict(node.kwargs)), note)
    return (node.target, tuple(operands), repr(rest))


def _try(node: Node) -> Outcome:
    """Return the dtypes of the op's results for its current operands."""
    args, kwargs = torch.fx.map_arg(
        (node.args, dict(node.kwargs)), lambda arg: arg.meta["val"]
    )
    run: Any = node.target
    mode = tensor_internals.fake_mode_of(pytrees.pytree.tree_leaves((args, kwargs)))
    if mode is None:
        return _dtypes(node.meta["val"])
    try:
        with mode, tensor_internals.symbolic_kernels(), torch.no_grad(), quiet():
            return _dtypes(run(*args, **kwargs))
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return str(error).strip().split("\n")[0]


def _dtypes(val: Any) -> tuple[torch.dtype, ...]:
    leaves = pytrees.pytree.tree_leaves(val)
    return tuple(leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor))


def _restore_operands(reading: Reading, op: Op, node: Node) -> None:
    """Cast the operands of an op back to the dtypes that they were traced with."""
    names = iter(op.operands)

    def restore(arg: Any) -> Any:
        if not isinstance(arg, Node) or not isinstance(
            arg.meta.get("val"), torch.Tensor
        ):
            return arg
        dtype = torch_dtype(reading.graph.values[next(names)].dtype)
        if arg.meta["val"].dtype == dtype:
            return arg
        with node.graph.inserting_before(node):
            cast = node.graph.call_function(aten.to.dtype, (arg, dtype))
        cast.meta.update(val=arg.meta["val"].to(dtype), amprewrite="cast")
        return cast

    args, kwargs = pytrees.pytree.tree_map(restore, (node.args, dict(node.kwargs)))
    node.args, node.kwargs = args, kwargs


def _cast_results(
    node: Node, found: tuple[torch.dtype, ...], wanted: tuple[torch.dtype, ...]
) -> Iterator[str]:
    """Cast results of another dtype than wanted, and yield a text for each."""
    places = _result_nodes(node)
    if len(found) != len(wanted):
        return
    for index, (have, want) in enumerate(zip(found, wanted, strict=True)):
        if have != want:
            yield f"{dtype_name(have)} instead of {dtype_name(want)}"
            for place in places[index]:
                _cast_result(place, have, want)


def _result_nodes(node: Node) -> list[list[Node]]:
    """Return for each result tensor of ``node`` the nodes that stand for it."""
    val = node.meta["val"]
    if not pytrees.is_sequence(val):
        return [[node]]
    taken = [user for user in node.users if user.target is operator.getitem]
    return [
        [user for user in taken if user.args[1] == index]
        for index, part in enumerate(val)
        if isinstance(part, torch.Tensor)
    ]


def _cast_result(node: Node, have: torch.dtype, want: torch.dtype) -> None:
    with node.graph.inserting_after(node):
        cast = node.graph.call_function(aten.to.dtype, (node, want))
    cast.meta = {**node.meta, "amprewrite": "cast"}
    retype(node, (dtype_name(have),))
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
