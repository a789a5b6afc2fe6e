"""Write a plan into the fx graph that it was made for, and check what was written."""

import operator
from collections import defaultdict
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.compat.settings import quiet
from amprewrite.frameworks.torch_fx.rewrite import in_place_writes
from amprewrite.frameworks.torch_fx.rewrite.quantise_contractions import (
    quantise_contractions,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Leaves, Reading, Site, held
from amprewrite.ir import Op
from amprewrite.plan import OUTPUT, Cast, Decision, Plan
from amprewrite.plan.uses import is_at_definition, output_sources, view_path
from amprewrite.plan.validation.check import check_ops


def rewrite(reading: Reading, plan: Plan) -> Plan:
    """Rewrite the module of ``reading`` in place by ``plan``.

    Returns:
        The plan, with a warning for each op whose kernel differs from it.

    Raises:
        PlanMismatchError: The plan was made for another program.
        GraphError: An op would read a value from before an in-place write to it.
    """
    before = in_place_writes.contents(reading)
    write(reading, plan)
    reconciled = plan.with_warnings(*reconcile(reading, plan))
    quantise_contractions(reading, plan)
    in_place_writes.check_writes(reading, before)
    return reconciled


aten = torch.ops.aten


def write(reading: Reading, plan: Plan) -> None:
    """Rewrite the module of ``reading`` in place by ``plan``.

    Raises:
        PlanMismatchError: The plan was made for another program.
    """
    check_ops(reading.graph, plan)
    _Writer(reading, plan).write()


class _Writer:
    def __init__(self, reading: Reading, plan: Plan) -> None:
        self.reading = reading
        self.plan = plan
        self.made: dict[tuple[int, Graph], Node] = {}
        self.defined: dict[int, str] = {}
        self.definitions: dict[str, list[tuple[int, Cast]]] = defaultdict(list)
        self.raw: set[Node] = set()
        self.casts: dict[tuple[str, int], list[tuple[int, Cast]]] = defaultdict(list)
        self.sources = output_sources(reading.graph)
        for number, cast in enumerate(plan.casts):
            for use in cast.uses:
                self.casts[use].append((number, cast))
            if is_at_definition(reading.graph, cast, self.sources):
                self.definitions[cast.producer].append((number, cast))

    def write(self) -> None:
        self._retype_weights()
        for op in self.reading.graph.ops:
            self._write_op(op, self.plan.by_op[op.name], self.reading.sites[op.name])
        self._write_outputs()
        self._retype_regions()

    def _retype_weights(self) -> None:
        stored = dict(self.plan.storage)
        for node, leaves in self.reading.leaves.items():
            is_source = node.op in ("get_attr", "placeholder")
            if is_source and isinstance(leaves, str) and leaves in stored:
                retype(node, (stored[leaves],))

    def _write_op(self, op: Op, decision: Decision, site: Site) -> None:
        self._substitute(op, site.node)
        if not op.fence:
            _set_dtype(op, decision, site.node)
            _clamp_literals(op, decision, site.node)
            _lay_out(op, site.node)
        retype(site.node, decision.results)
        _retype_parts(site.node)
        definitions = self.definitions.get(op.name)
        if definitions is None:
            in_place_writes.keep_copy(self.reading, op, site.node)
        for number, cast in definitions or ():
            self._cast_at_definition(site.node, number, cast)

    def _cast_at_definition(self, made: Node, number: int, cast: Cast) -> None:
        """Insert a cast at the definition of a value, replacing it in every body."""
        leaves = self.reading.leaves
        places = [n for n in (made, *made.users) if leaves.get(n) == cast.value]
        if not places:  # a list element without a node of its own
            return
        readers = {place: list(place.users) for place in places}
        with made.graph.inserting_before(places[0].next):
            node = _cast_node(places[0], cast, made)
        for place, users in readers.items():
            for user in users:
                user.replace_input_with(place, node)
        self.made[number, made.graph] = node
        self.defined[number] = cast.value
        leaves[node] = cast.value
        self.raw.update((made, *places))

    def _substitute(self, op: Op, node: Node) -> None:
        """Replace every operand that the plan casts by its cast."""
        if all((op.name, index) not in self.casts for index in range(len(op.operands))):
            return
        position = 0

        def replace(arg: Node) -> Any:
            nonlocal position
            leaves = self.reading.leaves.get(arg)
            count = sum(1 for _ in held(leaves))
            indices = range(position, position + count)
            position += count
            return self._operand(arg, leaves, indices, op.name, node)

        args, kwargs = map_arg((node.args, dict(node.kwargs)), replace)
        node.args, node.kwargs = args, kwargs

    def _operand(
        self, arg: Node, leaves: Leaves, indices: range, user: str, before: Node
    ) -> Any:  # a node, or a list of nodes for a list value
        run = {i: [c for c in self.casts[user, i] if _is_node(c[1])] for i in indices}
        if not any(run.values()):
            return arg
        if isinstance(leaves, str):
            return self._chain(run[indices[0]], arg, before)
        return [
            self._chain(run[i], _getitem(arg, number, before), before)
            for number, i in enumerate(indices)
        ]

    def _chain(self, casts: list[tuple[int, Cast]], arg: Node, before: Node) -> Node:
        for number, cast in casts:
            key = (number, before.graph)
            if number in self.defined:  # a value that enters a body was cast outside
                arg = self.made.get(key, arg)
                continue
            if key not in self.made:
                with before.graph.inserting_before(before):
                    self.made[key] = _cast_node(arg, cast, before)
            arg = self.made[key]
        return arg

    def _write_outputs(self) -> None:
        output = next(iter(reversed(self.reading.module.graph.nodes)))
        indices = iter(range(len(self.reading.graph.outputs)))
        made: dict[tuple[Node, str], Node] = {}

        def replace(arg: Node) -> Node:
            name = self.reading.leaves.get(arg)
            if name is None:
                return arg
            index = next(indices)
            casts = [c for c in self.casts[OUTPUT, index] if not c[1].folded]
            source = self.sources[index]
            if source == name or not isinstance(name, str):
                return self._chain(casts, arg, output)
            base = self._chain(casts, self._node_of(source), output)
            if not casts and self._dtype(source) == self._dtype(name):
                return arg
            if (base, name) not in made:
                path = view_path(self.reading.graph, source, name) or ()
                made[base, name] = in_place_writes.view_again(
                    self.reading, base, path, output
                )
            return made[base, name]

        output.args = map_arg(output.args, replace)

    def _node_of(self, name: str) -> Node:
        """Return the last node at top level that stands for a value."""
        nodes = reversed(self.reading.leaves.items())
        graph = self.reading.module.graph
        return next(n for n, held in nodes if held == name and n.graph is graph)

    def _dtype(self, name: str) -> str:
        """Return the dtype in which a result is stored."""
        for number, value in self.defined.items():
            if value == name:
                return self.plan.casts[number].to_dtype
        op = self.reading.graph.producer[name]
        return self.plan.by_op[op.name].results[op.results.index(name)]

    def _retype_regions(self) -> None:
        """Update ``meta["val"]`` of nodes around bodies to the plan's dtypes."""
        dtypes: dict[str, str] = {}
        for decision in self.plan.decisions:
            results = self.reading.graph.op_by_name[decision.op].results
            dtypes.update(zip(results, decision.results, strict=True))
        for number, value in self.defined.items():
            dtypes[value] = self.plan.casts[number].to_dtype
        for node, leaves in self.reading.leaves.items():
            names = list(held(leaves))
            if node in self.raw or in_place_writes.is_viewed_again(node):
                continue
            if names and all(name in dtypes for name in names):
                retype(node, tuple(dtypes[name] for name in names))


def _is_node(cast: Cast) -> bool:
    """Return whether a cast has a node; a copy has one until it is folded."""
    return not cast.folded or cast.folding == "copy"


def _getitem(arg: Node, index: int, before: Node) -> Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(operator.getitem, (arg, index))
    node.meta["val"] = arg.meta["val"][index]
    return node


def retype(node: Node, dtypes: tuple[str, ...]) -> None:
    """Set the dtypes of the tensors in ``meta["val"]``, in order."""
    names = iter(dtypes)

    def convert(val: Any) -> Any:
        if not isinstance(val, torch.Tensor):
            return val
        dtype = torch_dtype(next(names))
        return val if val.dtype == dtype else tensor_internals.retyped(val, dtype)

    val = node.meta.get("val")
    single = isinstance(val, torch.Tensor)
    node.meta["val"] = convert(val) if single else pytrees.pytree.tree_map(convert, val)


def _retype_parts(node: Node) -> None:
    """Update ``meta["val"]`` of the nodes that select one of several results."""
    for user in node.users:
        if user.target is operator.getitem:
            index: Any = user.args[1]
            user.meta["val"] = node.meta["val"][index]


def _cast_node(value: Node, cast: Cast, user: Node) -> Node:
    """Insert the cast of ``value`` for ``user`` and return it."""
    dtype = torch_dtype(cast.to_dtype)
    graph = value.graph
    source = _saturated(graph, value, dtype) if cast.saturate else value
    node = graph.call_function(aten.to.dtype, (source, dtype))
    origin = ("nn_module_stack", "stack_trace")
    node.meta = {k: v for k, v in user.meta.items() if k in origin}
    node.meta["val"] = tensor_internals.retyped(value.meta["val"], dtype)
    node.meta["amprewrite"] = cast.folding or "cast"
    return node


def _saturated(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    """Insert a clamp of finite numbers to the range of ``dtype``; return its node.

    ``isinf`` is written out: inductor has no vector code for it on CPUs. On an AVX-512
    core it took four times as long for 2 MB.
    """
    limits = torch.finfo(dtype)
    clamped = graph.call_function(aten.clamp.default, (value, limits.min, limits.max))
    size = graph.call_function(aten.abs.default, (value,))
    infinite = graph.call_function(aten.eq.Scalar, (size, inf))
    kept = graph.call_function(aten.where.self, (infinite, value, clamped))
    val = value.meta["val"]
    clamped.meta["val"] = size.meta["val"] = kept.meta["val"] = val
    infinite.meta["val"] = tensor_internals.retyped(val, torch.bool)
    for node in (clamped, size, infinite, kept):
        node.meta["amprewrite"] = "saturate"
    return kept


def _set_dtype(op: Op, decision: Decision, node: Node) -> None:
    """Rewrite the dtype argument of an op, as its decision requires."""
    if op.canonical == "cast":
        _write_cast(decision, node)
    elif op.dtype_argument and op.operands and not _is_made(node, decision):
        _set_argument(node, "dtype", torch_dtype(decision.results[0]))
    elif op.has_dtype_argument and decision.op_class in ("deny", "accumulate"):
        _set_argument(node, "dtype", torch_dtype(decision.precision))
    elif _makes(op) and ops.has_argument(node, "dtype"):
        made = torch_dtype(decision.results[0])
        if op.operands or made != node.meta["val"].dtype:
            _set_argument(node, "dtype", made)


def _is_made(node: Node, decision: Decision) -> bool:
    """Return whether the first result already has the dtype of the plan."""
    if not decision.results:
        return True
    val: Any = node.meta["val"]
    first: Any = val if isinstance(val, torch.Tensor) else val[0]
    return bool(first.dtype == torch_dtype(decision.results[0]))


def _makes(op: Op) -> bool:
    """Return whether an op makes a tensor without reading values: zeros, zeros_like."""
    return bool(op.results) and (op.operand_rule == "any" or not op.operands)


def _write_cast(decision: Decision, node: Node) -> None:
    dtype = torch_dtype(decision.results[0])
    if decision.op_class == "follow":
        node.meta[CHOSEN] = "follows"
    if ops.argument(node, "dtype") is not None:
        _set_argument(node, "dtype", dtype)
    else:  # type_as and to.other name a tensor of a possibly changed dtype
        node.target, node.args, node.kwargs = aten.to.dtype, (node.args[0], dtype), {}


def _set_argument(node: Node, name: str, value: Any) -> None:
    index, kwarg_only = ops.position(node, name)
    if kwarg_only or index >= len(node.args):
        node.kwargs = {**node.kwargs, name: value}
    else:
        node.update_arg(index, value)


def _clamp_literals(op: Op, decision: Decision, node: Node) -> None:
    """Clamp constants that fill low tensors to their range: finfo(float32).min."""
    if decision.precision not in ("bfloat16", "float16") or not op.literals:
        return
    largest = torch.finfo(torch_dtype(decision.precision)).max
    for name, number in ops.numbers(node):
        if largest < abs(number) and isfinite(number):
            _set_argument(node, name, largest if number > 0 else -largest)


def _lay_out(op: Op, node: Node) -> None:
    """Make the input of a low ``linear`` contiguous, for its speed.

    bfloat16 ``linear`` on a transposed 3-D input took 131 ms, 2.5 ms on a contiguous
    one (8x128x768, CPU): without a gradient on the weight it becomes a batched product.
    """
    if op.canonical != "linear" or not isinstance(node.args[0], Node):
        return
    val = node.args[0].meta.get("val")
    if val is None or val.dtype == torch.float32 or not val.shape[:-2]:
        return
    if val.is_contiguous():
        return
    with node.graph.inserting_before(node):
        dense = node.graph.call_function(aten.contiguous.default, (node.args[0],))
    dense.meta["val"] = val.contiguous()
    node.update_arg(0, dense)


# Compare the dtypes of a plan with those of the kernels, and fix differences.
#
# The plan predicts the dtype of every result. For ops of the tables the prediction is
# right, and a test checks it; an op that a user's rule lowers may have a kernel that
# always returns float32, or none for the low dtype. Then the op gets the operands it
# was traced with, or its result is cast, and a warning in the plan says so.

Outcome = tuple[torch.dtype, ...] | str
"""Dtypes of the results, or the message of a kernel that refused."""


def reconcile(reading: Reading, plan: Plan) -> list[str]:
    """Fix the written graph where a kernel differs from the plan; return warnings.

    Each distinct call (op, dtypes, numbers) is tried once on fake tensors.
    """
    tried: dict[object, Outcome] = {}
    warnings: list[str] = []
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
            traced = (reading.graph.values[name].dtype for name in op.results)
            outcome = tuple(map(torch_dtype, traced))
        planned = tuple(map(torch_dtype, decision.results))
        names = ", ".join(_cast_results(node, outcome, planned))
        if names:
            retype(node, tuple(map(dtype_name, outcome)))
        if refusal:
            cast = "; its result is cast" if names else ""
            warnings.append(f"{op.name} ({op.native}) runs as traced: {refusal}{cast}")
        elif names:
            text = f"{op.name} ({op.native}) gives {names}; its result is cast"
            warnings.append(text)
    return warnings


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
        val = arg.meta.get("val") if isinstance(arg, Node) else None
        if not isinstance(val, torch.Tensor):
            return arg
        dtype = torch_dtype(reading.graph.values[next(names)].dtype)
        if val.dtype == dtype:
            return arg
        with node.graph.inserting_before(node):
            cast = node.graph.call_function(aten.to.dtype, (arg, dtype))
        cast.meta.update(val=val.to(dtype), amprewrite="cast")
        return cast

    args, kwargs = pytrees.pytree.tree_map(restore, (node.args, dict(node.kwargs)))
    node.args, node.kwargs = args, kwargs


def _cast_results(
    node: Node, kernel: tuple[torch.dtype, ...], planned: tuple[torch.dtype, ...]
) -> Iterator[str]:
    """Cast results that a kernel gives in another dtype; yield a text for each."""
    places = _result_nodes(node)
    if len(kernel) != len(planned):
        return
    for index, (have, want) in enumerate(zip(kernel, planned, strict=True)):
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
