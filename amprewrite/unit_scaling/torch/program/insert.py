"""From a captured program to one with factors: analysis, rules, plan, writing."""

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import packet_name
from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, held, occurrences, read
from amprewrite.ir import ProgramGraph, Value
from amprewrite.unit_scaling.graph.scales import OUTPUT, Formula, Scale, ScalePlan
from amprewrite.unit_scaling.graph.units import Differentiable, Unit, differentiable
from amprewrite.unit_scaling.program import Settings, plan_scales
from amprewrite.unit_scaling.torch.program.rules import Rules
from amprewrite.unit_scaling.torch.scale import OPERATOR

# Write the factors of a scale plan into a captured graph, as ``amprewrite::scale``.

_SIZE: Any = torch.ops.aten.sym_size.int
_operator: Any = operator
_map_arg: Any = torch.fx.map_arg
_ARITHMETIC: dict[str, Any] = {
    "+": _operator.add,
    "*": _operator.mul,
    "/": _operator.truediv,
    "**": _operator.pow,
}


class ScaleWriter:
    """Inserts factors; those of inputs before those of results."""

    def __init__(self, reading: Reading, units: tuple[Unit, ...]) -> None:
        """Take the program and its units."""
        self.reading = reading
        self.units = {unit.name: unit for unit in units}
        self.nodes: dict[tuple[int, str], Node] = {}
        for node, leaf in reading.leaves.items():
            if isinstance(leaf, str):
                self.nodes.setdefault((id(node.graph), leaf), node)

    def write(self, plan: ScalePlan) -> None:
        """Insert the factors of a plan; several at one place are multiplied."""
        places: dict[tuple[str, int | None, str], list[Scale]] = defaultdict(list)
        for scale in plan:
            places[scale.unit, scale.index, scale.value].append(scale)
        for (unit, index, value), scales in places.items():
            forward = _product([scale.forward for scale in scales])
            backward = _product([scale.backward for scale in scales])
            if index == OUTPUT:
                self._leaving(value, (forward, backward))
            elif index is not None:
                self._before(self.units[unit], index, value, (forward, backward))
        for (unit, index, value), scales in places.items():
            if index is None:
                forward = _product([scale.forward for scale in scales])
                backward = _product([scale.backward for scale in scales])
                self._after(unit, value, (forward, backward))
        for owner in {
            id(s.owner): s.owner for s in self.reading.sites.values()
        }.values():
            owner.graph.lint()
            owner.recompile()
        self.reading.module.recompile()

    def _before(
        self, unit: Unit, index: int, value: str, factors: tuple[Any, Any]
    ) -> None:
        """Scale a value where a unit uses it."""
        scaled: dict[int, Node] = {}
        for op in unit.ops:
            node = self.reading.sites[op.name].node
            starts = iter(self._starts(node))

            def change(
                used: Node,
                node: Node = node,
                starts: Iterator[int] = starts,
            ) -> Node:
                place = next(starts)
                here = self.reading.leaves.get(used) == value
                if not here or (index >= 0 and place != index):
                    return used
                if id(node.graph) not in scaled:
                    scaled[id(node.graph)] = self._insert(used, node, factors)
                return scaled[id(node.graph)]

            args, kwargs = _map_arg((node.args, dict(node.kwargs)), change)
            node.args, node.kwargs = args, kwargs

    def _starts(self, node: Node) -> list[int]:
        """Return the operand index at which each node among the arguments starts."""
        found, count = list[int](), 0
        for used in self._originals(node):
            found.append(count)
            count += len(list(held(self.reading.leaves.get(used))))
        return found

    def _originals(self, node: Node) -> list[Node]:
        """Return the nodes among the arguments, those before scales were inserted."""
        return [
            n.all_input_nodes[0] if n.target is OPERATOR else n
            for n in occurrences(node)
        ]

    def _leaving(self, value: str, factors: tuple[Any, Any]) -> None:
        """Scale a value where the program returns it."""
        graph = self.reading.module.graph
        (output,) = graph.find_nodes(op="output")
        for used in output.all_input_nodes:
            if self.reading.leaves.get(used) == value:
                scaled = self._insert(used, output, factors)
                output.replace_input_with(used, scaled)

    def _after(self, unit: str, value: str, factors: tuple[Any, Any]) -> None:
        """Scale a result of a unit, for all its uses."""
        graph = self.reading.sites[unit].node.graph
        made = self.nodes[id(graph), value]
        with graph.inserting_after(made):
            scaled = graph.call_function(OPERATOR, (made, 1.0, 1.0))
        scaled.meta = dict(made.meta)

        def is_use(user: Node) -> bool:
            return user is not scaled and user.target is not _SIZE

        made.replace_all_uses_with(scaled, delete_user_cb=is_use)
        self._fill(scaled, made, factors)

    def _insert(self, source: Node, before: Node, factors: tuple[Any, Any]) -> Node:
        """Insert a scale of ``source`` before a node."""
        with before.graph.inserting_before(before):
            scaled = before.graph.call_function(OPERATOR, (source, 1.0, 1.0))
        scaled.meta = dict(source.meta)
        self._fill(scaled, source, factors)
        return scaled

    def _fill(self, scaled: Node, source: Node, factors: tuple[Any, Any]) -> None:
        """Compute the factors of a scale before it."""
        graph = scaled.graph
        with graph.inserting_before(scaled):
            numbers = [self._number(graph, factor) for factor in factors]
        scaled.args = (source, *numbers)

    def _number(self, graph: torch.fx.Graph, factor: Any) -> Any:
        """Return a factor as a number, or a node that computes it."""
        if not isinstance(factor, Formula):
            return float(factor)
        if factor.operation == "size":
            node = self.nodes[id(graph), factor.left]
            size = graph.call_function(_SIZE, (node, factor.right))
            size.meta["val"] = node.meta["val"].shape[factor.right]
            return size
        parts = [
            self._number(graph, p) if isinstance(p, Formula) else p
            for p in (factor.left, factor.right)
        ]
        function = _ARITHMETIC[factor.operation]
        node = graph.call_function(function, tuple(parts))
        known = [p.meta["val"] if isinstance(p, Node) else p for p in parts]
        node.meta["val"] = function(*known)
        return node


def _product(factors: list[Any]) -> Any:
    """Return the product of factors."""
    result = factors[0]
    for factor in factors[1:]:
        result = factor * result
    return result


def without_writes(module: GraphModule) -> None:
    """Replace ops in place by those that make a new tensor, where nothing else aliases.

    A write to a view, an input or a buffer stays.
    """
    for owner in (m for m in module.modules() if isinstance(m, GraphModule)):
        replaced = set[Node]()
        for node in list(owner.graph.nodes):
            first, overload = _written(node), _without_write(node.target)
            if first is None or overload is None:
                continue
            alias = _aliases(owner.graph, first) - replaced - {first, node}
            if first.op != "call_function" or alias:
                continue
            node.target = overload
            replaced |= {first, node}
            later = set(_after(owner.graph, node))
            first.replace_all_uses_with(
                node, delete_user_cb=lambda user, later=later: user in later
            )


def _written(node: Node) -> Node | None:
    """Return the float tensor that an op writes in place; None if it does not."""
    target: Any = node.target
    if not operators.is_overload(target) or not operators.is_mutable(target):
        return None
    first = node.args[0] if node.args else None
    val = first.meta.get("val") if isinstance(first, Node) else None
    is_float = isinstance(val, torch.Tensor) and val.is_floating_point()
    return first if is_float and isinstance(first, Node) else None


def _without_write(target: Any) -> Any:
    """Return the op that makes a new tensor instead; None if there is none."""
    name = packet_name(target)
    if not name.endswith("_"):
        return None
    plain = getattr(torch.ops.aten, name[:-1], None)
    return getattr(plain, str(target).rpartition(".")[2], None)


def _aliases(graph: torch.fx.Graph, node: Node) -> set[Node]:
    """Return the nodes with a tensor that shares the storage of that of ``node``."""
    storage = tensor_internals.storage_identity(node.meta["val"])
    found = set[Node]()
    for other in graph.nodes:
        leaves: list[Any] = pytree.tree_leaves(other.meta.get("val"))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor_internals.storage_identity(t) == storage for t in tensors):
            found.add(other)
    return found


def _after(graph: torch.fx.Graph, node: Node) -> list[Node]:
    """Return the nodes that run after ``node``."""
    nodes: list[Node] = list(graph.nodes)
    return nodes[nodes.index(node) + 1 :]


def insert_scales(
    module: GraphModule, example: tuple[Any, Mapping[str, Any]], settings: Settings
) -> ScalePlan:
    """Insert factors into a captured program, and return their plan.

    Args:
        module: The program; it is changed in place, after all rules are found.
        example: Arguments of a call.
        settings: How to scale.

    Raises:
        UnitScalingError: An op has no rule, or nothing is differentiable.
        UnsupportedError: The program has factors already, or complex numbers, or writes
            to a value that is differentiated.
    """
    without_writes(module)
    reading = read(module)
    refuse_unsupported(reading.graph)
    live = differentiable(reading.graph)
    _refuse(live)
    rules = Rules(reading, live, example, settings.mult)
    units, plan = plan_scales(live, rules.of, settings)
    ScaleWriter(reading, units).write(plan)
    return plan


def refuse_unsupported(graph: ProgramGraph) -> None:
    """Refuse complex numbers, and writes in place, that depend on parameters or inputs.

    Statistics of a normalisation may be written.

    Raises:
        UnsupportedError: Names the first such op.
    """
    reached = {v.name for v in graph.inputs("parameter", "input") if not _is_whole(v)}
    for op in graph.ops:
        if not reached.intersection(op.operands):
            continue
        if op.mutates and op.traits.group != "normalisation":
            msg = (
                f"{op.native} at {op.source} writes to a tensor that is "
                "differentiated; use an op that makes a new tensor: torch.where"
            )
            raise UnsupportedError(msg)
        for value in (graph.values[name] for name in op.results):
            if value.dtype.startswith("complex"):
                msg = (
                    f"unit scaling of complex tensors has no rule: {op.native} at "
                    f"{op.source}; write it with real and imaginary parts"
                )
                raise UnsupportedError(msg)
            if not _is_whole(value):
                reached.add(value.name)


def _is_whole(value: Value) -> bool:
    """Return whether a value holds integers or truth values."""
    return not value.is_float and not value.dtype.startswith("complex")


def _refuse(live: Differentiable) -> None:
    """Refuse programs that cannot be scaled.

    Raises:
        UnitScalingError: Nothing is differentiable.
        UnsupportedError: There are factors already.
    """
    if not live.ops:
        msg = (
            "no float output depends on a float parameter or input: there is nothing "
            "to scale; want a model with an output that is differentiated"
        )
        raise UnitScalingError(msg)
    for op in live.ops:
        if op.native == "amprewrite.scale.default":
            msg = (
                f"the model has factors of unit scaling already, at {op.source}; want "
                "a model without ops of amprewrite.unit_scaling"
            )
            raise UnsupportedError(msg)
