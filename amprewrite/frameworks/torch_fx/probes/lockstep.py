"""Run two graphs of one model side by side, op by op: the reference and the rewritten.

The rewritten graph has the ops of the original under the same names, with casts between
them. Each op of both is run on its own operands (the accumulated error), and the
rewritten one once more on the reference's operands, rounded to the dtypes that it reads
(its own error). Values are freed after their last use. A product that the processor
emulates runs once; see :mod:`amprewrite.frameworks.torch_fx.probes.emulation.alone`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.output_paths import named_tensors
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.compat.operators import (
    is_higher_order,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import positional, pytree
from amprewrite.frameworks.torch_fx.probes.arrays import TensorValues, floats, views_of
from amprewrite.frameworks.torch_fx.probes.emulation.alone import (
    is_known,
    rounded_alone,
)
from amprewrite.frameworks.torch_fx.probes.emulation.products import Products
from amprewrite.frameworks.torch_fx.probes.inserted_nodes import (
    inserted_sample,
    is_rounded,
)
from amprewrite.frameworks.torch_fx.probes.operand_dtypes import (
    default_dtype,
    paired,
    rounded,
    widened,
    widened_again,
)
from amprewrite.frameworks.torch_fx.probes.rerun import (
    Again,
    Draws,
    Runs,
    may_write,
)
from amprewrite.frameworks.torch_fx.rewrite.fp8_kernel.fp8_dot import (
    OPERATOR as FP8_DOT,
)
from amprewrite.measure.samples import Observe, OpSample
from amprewrite.measure.values.blocks import are_equal
from amprewrite.plan import Decision


class _Values(dict[Node, Any]):
    """Values of nodes; attributes are loaded when they are read.

    Args:
        load: Returns the value of a node that reads an attribute.
    """

    def __init__(self, load: Callable[[Node], Any]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, node: Node) -> Any:
        if node.op != "get_attr":
            raise KeyError(node)
        return self.setdefault(node, self._load(node))


class Walk:
    """Execution of one graph, node by node.

    Args:
        owner: The module with the attributes that the graph reads.
        graph: The graph.
        inputs: One value for each placeholder.
        wide: Replacements of dtypes; empty to run unchanged.
    """

    def __init__(
        self,
        owner: nn.Module,
        graph: Graph,
        inputs: Collection[Any],
        wide: Mapping[torch.dtype, torch.dtype],
    ) -> None:
        """Start before the first node."""
        self.owner, self.graph, self.wide = owner, graph, wide
        self.values: dict[Node, Any] = _Values(self._attribute)
        self.named = {node.name: node for node in graph.nodes}
        self._inputs = iter(inputs)
        self._rest: Iterator[Node] = iter(tuple(graph.nodes))
        self._last = _last_uses(graph)
        self._buffers: dict[int, torch.Tensor] = {}

    def operands(self, structure: Any) -> Any:
        """Return ``structure`` with values for nodes, and its dtypes replaced."""
        filled = torch.fx.map_arg(structure, lambda node: self.values[node])
        return widened(filled, self.wide)

    def run(self, node: Node) -> Any:
        """Run one node, store its value and return it."""
        match node.op:
            case "placeholder":
                value = next(self._inputs)
            case "get_attr" if self.wide:
                return None  # converted where it is read, one at a time
            case "get_attr":
                value = self._attribute(node)
            case "call_function":
                value = self.call(node, self.operands((node.args, dict(node.kwargs))))
            case _:
                value = None  # guards, which hold no tensors
        self.values[node] = value
        return value

    def call(self, node: Node, operands: tuple[Any, Any]) -> Any:
        """Return the result of the op of ``node`` on other operands."""
        function: Any = node.target
        dtype = self.wide.get(torch.get_default_dtype())
        with default_dtype(dtype) if dtype else nullcontext():
            return function(*operands[0], **operands[1])

    def release(self, node: Node) -> None:
        """Drop the values with ``node`` as their last user."""
        for used in self._last.get(node, ()):
            self.values.pop(used, None)

    def run_to(self, stop: Node | None) -> None:
        """Run the nodes before ``stop`` that were not run yet."""
        for node in self._rest:
            if node is stop:
                return
            if node.op != "output":
                self.run(node)
                self.release(node)

    def outputs(self) -> Any:
        """Return the outputs, after all nodes were run."""
        (output,) = self.graph.find_nodes(op="output")
        return self.operands(output.args[0])

    def _attribute(self, node: Node) -> Any:
        found: Any = self.owner
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if not isinstance(found, torch.Tensor):
            return found
        held = found.detach()
        if isinstance(found, nn.Parameter):
            return held.to(self.wide.get(held.dtype, held.dtype))
        if id(found) not in self._buffers:  # the program may write to it
            self._buffers[id(found)] = held.to(
                self.wide.get(held.dtype, held.dtype), copy=True
            )
        return self._buffers[id(found)]


def _last_uses(graph: Graph) -> Mapping[Node, list[Node]]:
    """Return for each node the values that are not used after it."""
    last: dict[Node, list[Node]] = defaultdict(list)
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        for used in (*node.all_input_nodes, node):
            if used not in seen:
                seen.add(used)
                last[node].append(used)
    return last


def named_outputs(graph: Graph, flat: Any) -> dict[str, torch.Tensor]:
    """Return the outputs of a walk over a captured graph by their paths."""
    structure = pytrees.call_structure(graph)
    if structure is None:
        return dict(named_tensors(flat))
    leaves = pytree.tree_leaves(flat)
    return dict(named_tensors(pytree.tree_unflatten(leaves, structure.out_spec)))


class Lockstep:
    """A walk over a rewritten graph and the original one.

    Args:
        decisions: The ops to compare, by name.
        observe: Receives their samples.
        contractions: Names of the ops that multiply and sum.
        limit: Largest finite number of the low dtype, to which masks are clamped.
        products: Keeps the results of emulated products; None to run all kernels.
    """

    def __init__(
        self,
        decisions: Mapping[str, Decision],
        observe: Observe,
        contractions: Collection[str] = (),
        limit: float = inf,
        products: Products | None = None,
    ) -> None:
        """Store the ops to compare."""
        self.decisions, self.observe = decisions, observe
        self.contractions, self.limit = contractions, limit
        self.products = products
        self.unmatched: list[str] = []
        self.seen: set[Node] = set()

    def walk(self, ours: Walk, theirs: Walk, prefix: str = "") -> tuple[Any, Any]:
        """Run both and return the outputs of each.

        Args:
            ours: The rewritten graph.
            theirs: The reference.
            prefix: Prefix of the names of ops in this body.
        """
        for node in ours.graph.nodes:
            name, twin = prefix + node.name, theirs.named.get(node.name)
            start = body_start(node)
            if node.op == "output":
                continue
            if name in self.decisions and twin is not None:
                theirs.run_to(twin)
                self._compare(self.decisions[name], (ours, node), (theirs, twin))
                theirs.release(twin)
            elif start is not None and twin is not None:
                theirs.run_to(twin)
                self._enter(start, (ours, node), (theirs, twin), f"{name}.")
                theirs.release(twin)
            else:
                ours.run(node)
                if twin is None and node.op == "call_function":
                    self._inserted(ours, node, name)
            ours.release(node)
        theirs.run_to(None)
        return ours.outputs(), theirs.outputs()

    def _enter(
        self,
        start: int,
        ours: tuple[Walk, Node],
        theirs: tuple[Walk, Node],
        prefix: str,
    ) -> None:
        """Compare the ops of a body that runs once in place."""
        inner = [body_of(walk, node, start) for walk, node in (ours, theirs)]
        with region_mode(ours[1]):
            outputs = self.walk(inner[0], inner[1], prefix)
        for (walk, node), value in zip((ours, theirs), outputs, strict=True):
            walk.values[node] = value

    def _inserted(self, ours: Walk, node: Node, name: str) -> None:
        """Compare the value of an inserted node with its source."""
        handed = floats([ours.values[used] for used in node.all_input_nodes])
        sample = inserted_sample(node, name, ours.values[node], handed, self.limit)
        if sample is not None:
            self.observe(sample)

    def _weights(self, ours: tuple[Walk, Node], theirs: tuple[Walk, Node]) -> None:
        """Compare the weights that an op reads with the original's, each once."""
        (walk, node), (other, twin) = ours, theirs
        read, exact = (pytree.tree_leaves((n.args, n.kwargs)) for n in (node, twin))
        for one, two in zip(read, exact, strict=False):
            if not (isinstance(one, Node) and isinstance(two, Node)):
                continue
            if one.op != "get_attr" or one in self.seen:
                continue
            self.seen.add(one)
            held, wanted = walk.values[one], other.values[two]
            if not is_rounded(held, wanted):
                sample = inserted_sample(
                    one, one.name, held, floats(wanted), self.limit
                )
                if sample is not None:
                    self.observe(sample)

    def _compare(
        self, decision: Decision, ours: tuple[Walk, Node], theirs: tuple[Walk, Node]
    ) -> None:
        (walk, node), (other, twin) = ours, theirs
        self._weights(ours, theirs)
        read = walk.operands((node.args, dict(node.kwargs)))
        exact = other.operands((twin.args, dict(twin.kwargs)))
        draws, pure = Draws(node), not (may_write(node) or may_write(twin))
        made = floats(other.run(twin)) if pure else []
        views = views_of(made, floats(exact))
        if views:
            draws.rewind()
            moved = floats(walk.run(node))
            if views_of(moved, floats(read)) == views:
                self.observe(_moved(decision.op, made, moved))
                return
            draws.rewind()
        fed = paired(read, exact, rounded)
        contracts = decision.op in self.contractions

        def again_on(operands: Any) -> Again:
            given = widened_again(exact, operands, products=contracts)
            return Again(partial(other.call, twin), given, writes=not pure)

        again = again_on(fed)
        if not pure:  # it may write to its operands, which were copied first
            made = floats(other.run(twin))
        reference = tuple(map(TensorValues, made))
        draws.rewind()
        runs = None
        if pure and contracts and node.target is twin.target:
            beside = partial(again_on, read)
            runs = self._emulated(decision, (walk, node), (exact, read), beside, again)
        if runs is None:
            same = again.results()
            draws.rewind()
            alone = floats(walk.call(node, fed))
            draws.rewind()
            runs = Runs(floats(walk.run(node)), alone, same, again)
        if not reference:
            return
        found = tuple(map(TensorValues, runs.actual))
        if [a.shape for a in found] != [r.shape for r in reference]:
            self.unmatched.append(decision.op)
            return
        own, same = (tuple(map(TensorValues, x or ())) for x in (runs.alone, runs.same))
        known = [a.shape for a in same] == [a.shape for a in found]
        sample = OpSample(
            op=decision.op,
            reference=reference,
            actual=found,
            alone=own,
            exact=known and are_equal(own, same),
            same=same if known else None,
            again=runs.again,
            contracts=contracts,
            length=again.largest / max(1, min(values.size for values in found)),
            format=decision.forward if node.target is FP8_DOT else "",
            checked=tuple(map(TensorValues, runs.checked)),
        )
        self.observe(sample)

    def _emulated(
        self,
        decision: Decision,
        ours: tuple[Walk, Node],
        operands: tuple[Any, Any],
        beside: Callable[[], Again],
        again: Again,
    ) -> Runs | None:
        """Return the runs of an emulated product; None if it is to be run alone.

        ``beside`` returns the original's op on its own operands, the second ones.
        """
        if self.products is None or not is_known(decision.canonical, *operands):
            return None
        checks = beside()
        with self.products.once():
            actual = floats(ours[0].run(ours[1]))
        checked, same = checks.results(), again.results()
        alone = rounded_alone(actual, checked, same)
        if alone is None or checked is None:
            return None
        return Runs(actual, alone, same, checks, tuple(checked))


def _moved(
    op: str, made: Collection[torch.Tensor], found: Collection[torch.Tensor]
) -> OpSample:
    """Return the sample of an op that moves the same elements in both graphs."""
    reference, actual = tuple(map(TensorValues, made)), tuple(map(TensorValues, found))
    return OpSample(op, reference, actual, reference, exact=True, same=reference)


def body_start(node: Node) -> int | None:
    """Return the index of the first operand of a body that runs in place."""
    if not is_higher_order(node.target) or node.kwargs:
        return None
    name = node.target.name()
    if name not in ops.REGIONS:
        return None
    return ops.REGIONS[name][0] + 1 + (name in ops.IDENTIFIER_ARGUMENT)


def body_of(walk: Walk, node: Node, start: int) -> Walk:
    """Return a new walk over the body of ``node``."""
    operands = walk.operands(node.args)
    position = ops.REGIONS[ops.region_name(node.target)][0]
    body = operands[position]
    return Walk(body, body.graph, operands[start:], walk.wide)


@contextmanager
def region_mode(node: Node) -> Generator[None]:
    """Enter the autocast region that ``node`` opens, if any."""
    if ops.region_name(node.target) != "wrap_with_autocast":
        yield
        return
    device, dtype, enabled, cache = positional(node)[:4]
    with torch.autocast(device, dtype, enabled=enabled, cache_enabled=cache):
        yield
