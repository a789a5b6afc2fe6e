"""Run two graphs of one model side by side, op by op: the reference and the rewritten.

The rewritten graph has the ops of the original under the same names, and casts between
them. Each op of both is run on its own operands (the error so far), and the rewritten
one once more on the reference's operands, rounded to the dtypes that it reads (the
error that it makes by itself). Values are dropped after their last use.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from amprewrite.frameworks.base import Array, Observe, OpSample
from amprewrite.frameworks.torch_fx import ops
from amprewrite.frameworks.torch_fx._compat import is_higher_order, positional, pytree
from amprewrite.plan import Decision


def to_array(tensor: torch.Tensor) -> Array:
    """Return a float tensor as f64; a complex one as pairs in a new last dimension."""
    held = tensor.detach()
    if held.is_complex():
        held = torch.view_as_real(held.resolve_conj())
    # A copy: the program may write to the tensor after this.
    wide = held.to(device="cpu", dtype=torch.float64, copy=True)
    return np.asarray(wide.numpy())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    """Let what names no dtype be made in ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Walk:
    """One graph that is run node by node.

    Args:
        owner: The module whose attributes the graph reads.
        graph: The graph.
        inputs: One value for each placeholder.
        wide: Dtypes that are replaced, with what replaces them; empty to run as is.
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
        self.values: dict[Node, Any] = {}
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
        """Run one node, keep its value and return it."""
        match node.op:
            case "placeholder":
                value = next(self._inputs)
            case "get_attr":
                value = self._attribute(str(node.target))
            case "call_function":
                value = self.call(node, self.operands((node.args, dict(node.kwargs))))
            case _:
                value = None  # guards, which hold no tensors
        self.values[node] = value
        return value

    def call(self, node: Node, operands: tuple[Any, Any]) -> Any:
        """Return what the op of ``node`` gives for other operands."""
        function: Any = node.target
        dtype = self.wide.get(torch.get_default_dtype())
        with default_dtype(dtype) if dtype else nullcontext():
            return function(*operands[0], **operands[1])

    def release(self, node: Node) -> None:
        """Drop the values that ``node`` was the last to use."""
        for used in self._last.get(node, ()):
            self.values.pop(used, None)

    def run_to(self, stop: Node | None) -> None:
        """Run what stands before ``stop`` and was not run; ``stop`` is left to do."""
        for node in self._rest:
            if node is stop:
                return
            if node.op != "output":
                self.run(node)
                self.release(node)

    def outputs(self) -> Any:
        """Return the outputs; every node was run."""
        (output,) = self.graph.find_nodes(op="output")
        return self.operands(output.args[0])

    def _attribute(self, target: str) -> Any:
        found: Any = self.owner
        for part in target.split("."):
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
    """Return for each node the values that nobody uses after it."""
    last: dict[Node, list[Node]] = defaultdict(list)
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        for used in (*node.all_input_nodes, node):
            if used not in seen:
                seen.add(used)
                last[node].append(used)
    return last


def widened(structure: Any, wide: Mapping[torch.dtype, torch.dtype]) -> Any:
    """Return ``structure`` with the dtypes in it replaced."""
    if not wide:
        return structure
    return pytree.tree_map(
        lambda leaf: wide.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf,
        structure,
    )


def widen_bodies(module: nn.Module, wide: Mapping[torch.dtype, torch.dtype]) -> None:
    """Replace the dtypes that the graphs below ``module`` name, in place."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if not str(node.target).endswith("view.dtype"):  # it reads bits
                    node.args = widened(node.args, wide)
                    node.kwargs = widened(node.kwargs, wide)
            part.recompile()


class Lockstep:
    """A walk over a rewritten graph and the original one.

    Args:
        decisions: The ops to compare, by name.
        observe: Takes their samples.
    """

    def __init__(self, decisions: Mapping[str, Decision], observe: Observe) -> None:
        """Remember what to compare."""
        self.decisions, self.observe = decisions, observe
        self.unmatched: list[str] = []

    def walk(self, ours: Walk, theirs: Walk, prefix: str = "") -> tuple[Any, Any]:
        """Run both and return the outputs of each.

        Args:
            ours: The rewritten graph.
            theirs: The reference.
            prefix: What the names of ops in this body begin with.
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
        """Compare the ops of a body that runs once where it stands."""
        inner = [body_of(walk, node, start) for walk, node in (ours, theirs)]
        with region_mode(ours[1]):
            outputs = self.walk(inner[0], inner[1], prefix)
        for (walk, node), value in zip((ours, theirs), outputs, strict=True):
            walk.values[node] = value

    def _compare(
        self, decision: Decision, ours: tuple[Walk, Node], theirs: tuple[Walk, Node]
    ) -> None:
        (walk, node), (other, twin) = ours, theirs
        read = walk.operands((node.args, dict(node.kwargs)))
        exact = other.operands((twin.args, dict(twin.kwargs)))
        fed, given = _paired(read, exact, _round), None
        if decision.op_class != "allow":  # a contraction rounds; save its time
            given = _paired(exact, fed, _unrounded)
        draws = _Draws(node)
        reference = [to_array(tensor) for tensor in floats(other.run(twin))]
        draws.rewind()
        alone = floats(walk.call(node, fed))
        draws.rewind()
        same = given is not None and _is_exact(alone, other, twin, given)
        draws.rewind()
        actual = floats(walk.run(node))
        if not reference:
            return
        found = tuple(to_array(tensor) for tensor in actual)
        if [a.shape for a in found] != [r.shape for r in reference]:
            self.unmatched.append(decision.op)
            return
        arrays = tuple(to_array(tensor) for tensor in alone)
        self.observe(OpSample(decision.op, tuple(reference), found, arrays, same))


class _Draws:
    """Lets a random op draw the same numbers each time it is run."""

    def __init__(self, node: Node) -> None:
        tags: Collection[Any] = getattr(node.target, "tags", ())
        self.random = torch.Tag.nondeterministic_seeded in tags
        if self.random:
            self.host = torch.get_rng_state()
            cuda = torch.cuda.is_initialized()
            self.devices = torch.cuda.get_rng_state_all() if cuda else []

    def rewind(self) -> None:
        """Put the generators back."""
        if self.random:
            torch.set_rng_state(self.host)
            if self.devices:
                torch.cuda.set_rng_state_all(self.devices)


def body_start(node: Node) -> int | None:
    """Return where the operands of a body that runs where it stands begin."""
    if not is_higher_order(node.target) or node.kwargs:
        return None
    name = node.target.name()
    if name not in ops.REGIONS:
        return None
    return ops.REGIONS[name][0] + 1 + (name in ops.IDENTIFIER_ARGUMENT)


def body_of(walk: Walk, node: Node, start: int) -> Walk:
    """Return a walk over the body of ``node``, not begun."""
    operands = walk.operands(node.args)
    position = ops.REGIONS[ops.region_name(node.target)][0]
    body = operands[position]
    return Walk(body, body.graph, operands[start:], walk.wide)


@contextmanager
def region_mode(node: Node) -> Generator[None]:
    """Be in the autocast region that ``node`` opens, if it opens one."""
    if ops.region_name(node.target) != "wrap_with_autocast":
        yield
        return
    device, dtype, enabled, cache = positional(node)[:4]
    with torch.autocast(device, dtype, enabled=enabled, cache_enabled=cache):
        yield


def floats(value: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors in a value."""
    return [
        leaf
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
    ]


def _paired(
    shape: tuple[Any, Any], other: tuple[Any, Any], join: Callable[[Any, Any], Any]
) -> tuple[Any, Any]:
    """Return arguments of the structure ``shape``, each leaf joined with the other's.

    What ``other`` has in another structure joins with itself: nothing is known of it.
    """

    def pair(one: Any, two: Any) -> Any:
        leaves, spec = pytree.tree_flatten(one)
        values = pytree.tree_leaves(two)
        if len(values) != len(leaves):
            values = leaves
        return pytree.tree_unflatten(list(map(join, leaves, values)), spec)

    (args, kwargs), (others, named) = shape, other
    spare = [None] * len(args)
    return (
        [pair(one, two) for one, two in zip(args, [*others, *spare], strict=False)],
        {key: pair(one, named.get(key)) for key, one in kwargs.items()},
    )


def _round(read: Any, exact: Any) -> Any:
    """Return a copy of ``exact`` in the dtype and layout of ``read``.

    Where the program has brought large numbers into the range of its dtype (a mask of
    -3.4e38 in float16) the copy is brought there too.
    """
    if not isinstance(read, torch.Tensor):
        return read
    usable = isinstance(exact, torch.Tensor) and exact.shape == read.shape
    if not usable or read.layout != torch.strided:
        return read.clone()
    source = exact
    limits = torch.finfo(read.dtype) if read.is_floating_point() else None
    if limits and _exceeds(exact, limits.max) and bool(read.isfinite().all()):
        bounded = exact.clamp(limits.min, limits.max)
        source = torch.where(exact.isfinite(), bounded, exact)
    return torch.empty_like(read).copy_(source)


def _unrounded(exact: Any, rounded: Any) -> Any:
    """Return ``rounded`` in the dtype of ``exact``, and whatever is no tensor as is."""
    if not isinstance(exact, torch.Tensor):
        return exact
    if not isinstance(rounded, torch.Tensor) or rounded.shape != exact.shape:
        return exact.clone()
    return rounded.to(exact.dtype, copy=True)


def _is_exact(found: list[torch.Tensor], walk: Walk, node: Node, operands: Any) -> bool:
    """Whether the original's op gives the same from the same rounded operands."""
    try:
        wanted = floats(walk.call(node, operands))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False  # it has no kernel for these dtypes: nothing is known
    return len(found) == len(wanted) and all(map(_is_same, found, wanted))


def _exceeds(tensor: torch.Tensor, limit: float) -> bool:
    if tensor.dtype.itemsize < 4 or not tensor.numel():  # noqa: PLR2004  # bytes: no wider
        return False
    linalg: Any = torch.linalg
    return not bool(linalg.vector_norm(tensor.flatten(), float("inf")) <= limit)


def _is_same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors have the same values, NaN being the same as NaN."""
    if found.shape != wanted.shape:
        return False
    wide = found.to(wanted.dtype)
    if torch.equal(wide, wanted):
        return True
    unknown = wanted.isnan()
    same = (wide == wanted) | unknown & wide.isnan()
    return bool(unknown.any()) and bool(same.all())
