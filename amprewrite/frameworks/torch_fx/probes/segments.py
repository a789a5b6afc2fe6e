"""Differentiate a graph in segments, several times from its outputs backwards.

A backward pass keeps the values of all ops. In segments it keeps those of one, which
are computed again, and those that are alive at the cuts: the graph runs forwards once,
without autograd, and the values that are alive between segments are kept. Then each
segment, from the last to the first, runs again under autograd, and all directions pass
back through it before the one before it runs. So each op runs one more time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any

import torch
from torch.fx import GraphModule, Node

from amprewrite.frameworks.torch_fx.compat.operators import OpOverload, is_higher_order
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.executor import (
    Draws,
    Executor,
    body_start,
    may_write,
)
from amprewrite.frameworks.torch_fx.probes.runner import floats, is_inexact
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.plan.sensitivity import Probes

WINDOW = 4
"""A cut is moved by up to this part of a segment, to where few bytes are alive."""


def cuts(kept: Sequence[int], alive: Sequence[int], limit: int) -> list[int]:
    """Return the indices of the ops before which a sequence is cut.

    Args:
        kept: Bytes that each op keeps for the backward pass.
        alive: Bytes of the values that are alive before each op.
        limit: Bytes that may be kept at a time.

    Returns:
        Ascending; none if nothing has to be cut. The fewest that are within the limit;
        if there are none, those with which the fewest bytes are kept.
    """
    sums = [0, *accumulate(kept)]
    fewest, best = sums[-1], list[int]()
    for count in range(2, isqrt(len(kept)) + 2):
        if fewest <= limit:
            break
        found = _near(sums, alive, count)
        bounds = [0, *found, len(kept)]
        parts = pairwise(bounds)
        largest = max(sums[two] - sums[one] for one, two in parts)
        held = largest + sum(alive[index] for index in found)
        if held < fewest:
            fewest, best = held, found
    return best


def _near(sums: Sequence[int], alive: Sequence[int], count: int) -> list[int]:
    """Return the cuts into ``count`` segments that keep about as much each."""
    size, found = sums[-1] / count, set[int]()
    for number in range(1, count):
        off = {
            index: abs(sums[index] - size * number) for index in range(1, len(alive))
        }
        near = [(alive[i], far, i) for i, far in off.items() if far <= size / WINDOW]
        found |= {min(near)[-1]} if near else set()
    return sorted(found)


SHARE = 2.0
"""Bytes that a backward pass may keep, in those of a forward pass in float64."""

WIDE, BYTES = 8, 4
"""Bytes of a number in float64, and in float32."""

Grads = list[list[torch.Tensor]]
"""Gradients of the tensors of one node, by direction."""


class Segments:
    """A graph that runs in segments.

    Args:
        parts: The nodes of each segment.
        moving: Nodes of values with gradients; others depend on no rounding.
        start: Returns an executor of the graph, before its first node.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Node]],
        moving: Collection[Node],
        start: Callable[[], Executor],
    ) -> None:
        """Store the segments; nothing is run."""
        self.parts, self.moving, self.start = parts, moving, start
        self.alive: list[dict[Node, Any]] = []

    def forwards(self) -> Any:
        """Run all segments, and return the outputs of the graph."""
        executor = self.start()
        with torch.no_grad():
            for part in self.parts:
                self.alive.append(dict(executor.values))
                executor.run_nodes(part)
            outputs = executor.outputs()
        executor.values.clear()
        return outputs

    def backwards(
        self,
        forget: Callable[[], None],
        ends: Callable[[Any], Sequence[torch.Tensor]],
        rays: list[list[torch.Tensor]],
        tokens: Collection[torch.Tensor],
    ) -> Iterator[int]:
        """Differentiate each segment in each direction, from the last one.

        Args:
            forget: Drops what a consumer keeps of the segments that ran before.
            ends: Returns the outputs to differentiate, of those of the graph.
            rays: Gradients of these outputs, by direction; they are taken out.
            tokens: Other tensors to differentiate by; running a segment may add some.

        Yields:
            The direction, after each pass through a segment.
        """
        arriving: Mapping[Node, Grads] = {}
        count = len(rays)
        for number in reversed(range(len(self.parts))):
            executor, leaves = self._begin()
            forget()
            with torch.enable_grad():
                executor.run_nodes(self.parts[number])
                if number == len(self.parts) - 1:
                    made, grads = list(ends(executor.outputs())), rays[:]
                    rays.clear()
                else:
                    made, grads = _joined(executor, arriving, count)
            arriving = {}
            executor.values.clear()  # the executor is in a cycle with them
            leaving: dict[Node, Grads] = defaultdict(list)
            for direction in range(count):
                by = [*(leaf for held in leaves.values() for leaf in held), *tokens]
                keep = direction < count - 1
                found = iter(_differentiated(made, grads[direction], by, keep=keep))
                grads[direction] = []
                for node, held in leaves.items():
                    leaving[node].append([next(found) for _ in held])
                del by, found  # they hold the values of the segment
                yield direction
            arriving = leaving
            del executor, made, grads

    def _begin(self) -> tuple[Executor, dict[Node, list[torch.Tensor]]]:
        """Return an executor before the last segment left, and its values' leaves."""
        executor = self.start()
        leaves: dict[Node, list[torch.Tensor]] = {}

        def begun(node: Node, value: Any) -> Any:
            if node not in self.moving:
                return value
            held = leaves.setdefault(node, [])

            def leaf(part: Any) -> Any:
                if not is_inexact(part):
                    return part
                held.append(part.detach().requires_grad_())
                return held[-1].view_as(held[-1])

            with torch.enable_grad():
                return pytree.tree_map(leaf, value)

        for node, value in self.alive.pop().items():
            executor.values[node] = begun(node, value)
        return executor, leaves


def backwards(
    made: Sequence[torch.Tensor],
    rays: Sequence[Sequence[torch.Tensor]],
    tokens: Collection[torch.Tensor],
) -> Iterator[int]:
    """Differentiate tensors in each direction, through all that made them.

    Args:
        made: The tensors.
        rays: Gradients of these, by direction.
        tokens: Tensors to differentiate by.

    Yields:
        The direction, after each pass.
    """
    for direction, ray in enumerate(rays):
        terms = [(r * t).sum().cpu() for r, t in zip(ray, made, strict=True)]
        loss = torch.stack(terms).sum()
        if loss.requires_grad:
            keep = direction < len(rays) - 1
            torch.autograd.grad(loss, [*tokens], retain_graph=keep, allow_unused=True)
        yield direction


def _joined(
    executor: Executor, arriving: Mapping[Node, Grads], count: int
) -> tuple[list[torch.Tensor], Grads]:
    """Return the tensors at the end of a segment, and their gradients."""
    made: list[torch.Tensor] = []
    grads: Grads = [[] for _ in range(count)]
    for node, held in arriving.items():
        made += floats(executor.values[node])
        for direction, parts in enumerate(held):
            grads[direction] += parts
    return made, grads


def _differentiated(
    made: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    by: Sequence[torch.Tensor],
    *,
    keep: bool,
) -> list[torch.Tensor]:
    """Return the gradient by each tensor; zeros where there is none."""
    pairs = [pair for pair in zip(made, grads, strict=True) if pair[0].requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(by)
    if pairs and by:
        outputs, arriving = zip(*pairs, strict=True)
        found = torch.autograd.grad(
            outputs, by, arriving, retain_graph=keep, allow_unused=True
        )
    return [
        torch.zeros_like(tensor) if grad is None else grad
        for tensor, grad in zip(by, found, strict=True)
    ]


def segments_of(
    reading: Reading, probes: Probes, start: Callable[[], Executor]
) -> Segments | None:
    """Return the segments of a program; None if it keeps little, or cannot be cut.

    Args:
        reading: The program.
        probes: The roundings that are measured.
        start: Returns an executor of the graph, before its first node.
    """
    if not all(map(_runs_again, reading.module.modules())):
        return None
    nodes = [node for node in reading.module.graph.nodes if node.op != "output"]
    touched, moving = _touched(reading, probes), set[Node]()
    for node in nodes:
        is_op = node.op == "call_function"
        reads = not moving.isdisjoint(node.all_input_nodes)
        if is_op and (reads or node.name in touched or body_start(node) is not None):
            moving.add(node)
    sizes = _Sizes(reading, probes)
    kept = [sizes.kept(node) if node in moving else 0 for node in nodes]
    alive = sizes.alive(nodes)
    limit = SHARE * WIDE * (sizes.weights + max(alive, default=0))
    found = cuts([BYTES * n for n in kept], [BYTES * n for n in alive], int(limit))
    if not found:
        return None
    bounds = zip([0, *found], [*found, len(nodes)], strict=True)
    return Segments([nodes[one:two] for one, two in bounds], moving, start)


def _touched(reading: Reading, probes: Probes) -> set[str]:
    """Return the names of the ops with an operand or a result that is rounded."""
    makers = (reading.graph.producer.get(name) for name in probes.stored)
    stored = {maker.name for maker in makers if maker is not None}
    return stored | {op for _, op in probes.read} | {key.op for key in probes.eight}


def _runs_again(module: torch.nn.Module) -> bool:
    """Return whether a graph gives the same values each time, and writes nothing."""
    if not isinstance(module, GraphModule):
        return True
    return all(
        _gives_the_same(node)
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def _gives_the_same(node: Node) -> bool:
    target: Any = node.target
    if is_higher_order(target):
        return body_start(node) is not None
    if not isinstance(target, OpOverload):
        return True  # a Python function of numbers and lists
    return not (may_write(node) or Draws(node).random)


class _Sizes:
    """Numbers of elements of the values of a program.

    Args:
        reading: The program.
        probes: The roundings that are measured.
    """

    def __init__(self, reading: Reading, probes: Probes) -> None:
        self.reading, self.graph = reading, reading.graph
        self.values = reading.graph.values
        stored = (op for name, op in probes.read if self._is_weight(name))
        self.weighted = Counter(stored)

    def _is_weight(self, name: str) -> bool:
        is_matrix = len(self.values[name].shape) > 1
        return is_matrix and self.values[name].kind == "parameter"

    @property
    def weights(self) -> int:
        """Elements of all parameters."""
        return sum(value.elements for value in self.graph.inputs("parameter"))

    def kept(self, node: Node) -> int:
        """Return the elements that a node keeps for the backward pass.

        They are its float results that are no views, and the change of one by the
        rounding of each weight.
        """
        names = self._names(node)
        own = (n for n in names if self.graph.storage(n) == n)
        made = sum(self.values[n].elements for n in own if self.values[n].is_float)
        return made * (1 + self.weighted.get(node.name, 0))

    def alive(self, nodes: Sequence[Node]) -> list[int]:
        """Return the elements of the storages that are alive before each node."""
        last: dict[str, int] = {}
        first: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for name in map(self.graph.storage, self._names(node)):
                if node.op == "call_function":
                    first.setdefault(name, index)
            for used in node.all_input_nodes:
                for name in map(self.graph.storage, self._names(used)):
                    last[name] = index
        changes = [0] * (len(nodes) + 1)
        for name, index in first.items():
            size = self.values[name].elements
            changes[index + 1] += size
            changes[min(last.get(name, len(nodes) - 1) + 1, len(nodes))] -= size
        return list(accumulate(changes))[:-1]

    def _names(self, node: Node) -> list[str]:
        leaves = pytree.tree_leaves(self.reading.leaves.get(node))
        return [name for name in leaves if isinstance(name, str)]
