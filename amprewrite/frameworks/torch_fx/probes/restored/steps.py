"""Run a rewritten graph with some of its ops replaced by the original's.

Both graphs name their ops alike. A restored op is called with the values that the
rewritten graph has under the names of the original's operands, before any cast of them;
its result is kept as it is for restored readers, and rounded for all others. A storage
that is written in place is full as a whole, and rounded anew for each reader.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.dtypes import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.probes.arrays import floats
from amprewrite.frameworks.torch_fx.probes.lockstep import (
    Walk,
    body_of,
    body_start,
    region_mode,
)
from amprewrite.frameworks.torch_fx.probes.rerun import Draws
from amprewrite.frameworks.torch_fx.probes.restored.storages import Storages
from amprewrite.measure.ablation import Seconds
from amprewrite.plan import Decision


@dataclass
class Restoring:
    """A run of a rewritten graph with some ops restored.

    Attributes:
        decisions: The decisions of the plan, by op.
        storages: Storages that ops write in place.
        restored: Ops and inserted nodes to restore.
        seconds: Receives the time of each op that is restored.
    """

    decisions: Mapping[str, Decision]
    storages: Storages
    restored: Collection[str]
    seconds: MutableMapping[str, Seconds]
    _full: dict[Node, Any] = field(default_factory=dict[Node, Any])
    _current: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def __post_init__(self) -> None:
        """Find the storages that are full."""
        self._whole = self.storages.full(self.restored)

    def run(self, ours: Walk, theirs: Walk, prefix: str = "") -> Any:
        """Run the graph and return its outputs.

        Args:
            ours: The rewritten graph.
            theirs: The original one.
            prefix: Prefix of the names of ops in this body.
        """
        self._current.update(self.storages.current(ours, theirs, prefix))
        last = _last_uses(ours, theirs, self._current)
        for node in ours.graph.nodes:
            if node.op == "output":
                self._round_again(ours, node)
                continue
            self._run_node((ours, node), theirs, prefix + node.name)
            for used in last[node]:
                ours.values.pop(used, None)
                self._full.pop(used, None)
        return ours.outputs()

    def _run_node(self, ours: tuple[Walk, Node], theirs: Walk, name: str) -> None:
        walk, node = ours
        twin, start = theirs.named.get(node.name), body_start(node)
        self._round_again(walk, node)
        if twin is None:
            self._run_inserted(walk, node, name)
        elif name in self.storages.restorable and self._replaces(node, name):
            self._restore(ours, (theirs, twin), name)
        elif start is not None and name not in self.decisions:
            self._run_body(ours, (theirs, twin), start, f"{name}.")
        elif node.target is getitem and node.args[0] in self._full:
            walk.run(node)
            self._full[node] = self._full[node.args[0]][node.args[1]]
        else:
            self._run_plain(walk, node, self.decisions.get(name))
            if self._is_whole(name):
                self._full[node] = _like(walk.values[node], twin.meta.get("val"))

    def _round_again(self, walk: Walk, node: Node) -> None:
        """Round operands that are kept full and may have been written since."""
        for used in node.all_input_nodes if self._whole else ():
            if used in self._full and used in walk.values:
                walk.values[used] = _like(self._full[used], walk.values[used])

    def _is_whole(self, name: str) -> bool:
        """Return whether an op makes, views or writes a storage that is kept full."""
        return self.storages.of_op.get(name) in self._whole

    def _run_plain(self, walk: Walk, node: Node, decision: Decision | None) -> None:
        """Run an op as converted, in full precision on operands that are kept full.

        It would read that if the plan kept its operand full, also where its kernel
        promotes a low operand without a cast.
        """
        kept = [used for used in node.all_input_nodes if used in self._full]
        given = {used: walk.values[used] for used in kept}
        for used in kept:
            full = self._full[used]
            names = {dtype_name(x.dtype) for x in floats(full)}
            if decision is not None and names == {decision.precision}:
                walk.values[used] = full
        walk.run(node)
        walk.values.update(given)

    def _replaces(self, node: Node, name: str) -> bool:
        """Return whether an op is restored, or moves values that are kept full."""
        moves = self.decisions[name].op_class == "follow"
        kept = moves and any(used in self._full for used in node.all_input_nodes)
        writes = self._is_whole(name) and name not in self.storages.makers
        return kept or writes or name in self.restored

    def _run_inserted(self, walk: Walk, node: Node, name: str) -> None:
        """Run an inserted node; one that widens a value kept full hands that on."""
        made = walk.run(node)
        sources = [
            n for n in node.all_input_nodes if _is_alike(walk.values.get(n), made)
        ]
        if not sources or node.op != "call_function":
            return
        full = self._full.get(sources[0])
        if full is not None and full.dtype == made.dtype:
            walk.values[node] = self._full[node] = full
        if name in self.restored:
            source = walk.values[sources[0]] if full is None else full
            walk.values[node] = source.to(made.dtype)

    def _restore(
        self, ours: tuple[Walk, Node], theirs: tuple[Walk, Node], name: str
    ) -> None:
        (walk, node), (other, twin) = ours, theirs
        for used in twin.all_input_nodes:
            other.values[used] = self._value(walk, other, used)
        operands = other.operands((twin.args, dict(twin.kwargs)))
        draws = Draws(node)
        start = time.perf_counter()
        made = _waited(other.call(twin, operands))
        taken = time.perf_counter() - start
        timed = name in self.restored and name not in self.storages.of_op
        if timed and name not in self.seconds:
            draws.rewind()
            start = time.perf_counter()
            _waited(walk.call(node, walk.operands((node.args, dict(node.kwargs)))))
            self.seconds[name] = Seconds(time.perf_counter() - start, taken)
        other.values.clear()
        self._full[node] = made
        walk.values[node] = _rounded(made, self.decisions[name].results)

    def _value(self, walk: Walk, other: Walk, used: Node) -> Any:
        """Return the value that the original has under a name, as far as it is kept."""
        if used.op == "get_attr":
            return other.run(used)
        node = walk.named[used.name]
        if node in self._full:
            return self._full[node]
        if node in self._current:
            node = self._current[node]
        return _like(walk.values[node], used.meta.get("val"))

    def _run_body(
        self,
        ours: tuple[Walk, Node],
        theirs: tuple[Walk, Node],
        start: int,
        prefix: str,
    ) -> None:
        (walk, node), (other, twin) = ours, theirs
        for used in twin.all_input_nodes:
            other.values[used] = self._value(walk, other, used)
        inner = body_of(walk, node, start), body_of(other, twin, start)
        other.values.clear()
        with region_mode(node):
            walk.values[node] = self.run(*inner, prefix)


def _last_uses(
    ours: Walk, theirs: Walk, current: Mapping[Node, Node]
) -> Mapping[Node, list[Node]]:
    """Return for each node the values that neither graph uses after it."""
    last: dict[Node, list[Node]] = defaultdict(list)
    (output,) = ours.graph.find_nodes(op="output")
    seen = set(output.all_input_nodes)
    for node in reversed(ours.graph.nodes):
        twin = theirs.named.get(node.name)
        named = () if twin is None else (n.name for n in twin.all_input_nodes)
        read = [ours.named[name] for name in named if name in ours.named]
        held = [current[used] for used in read if used in current]
        for used in (*node.all_input_nodes, *read, *held, node):
            if used not in seen:
                seen.add(used)
                last[node].append(used)
    return last


def _is_alike(one: object, other: object) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.shape == other.shape and _is_float(one) and _is_float(other)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _like(value: Any, traced: Any) -> Any:
    """Return ``value`` in the dtypes that the original was traced with."""
    wanted = pytree.tree_leaves(traced)
    leaves, structure = pytree.tree_flatten(value)
    if len(wanted) != len(leaves):
        return value
    pairs = zip(leaves, wanted, strict=True)
    return pytree.tree_unflatten([_cast(x, _dtype(w)) for x, w in pairs], structure)


def _dtype(traced: object) -> torch.dtype | None:
    return traced.dtype if isinstance(traced, torch.Tensor) else None


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    known = isinstance(value, torch.Tensor) and dtype is not None
    return value.to(dtype) if known and _is_float(value) else value


def _rounded(made: Any, results: Iterable[str]) -> Any:
    """Return results of an op in the dtypes that the plan gives them."""
    leaves, structure = pytree.tree_flatten(made)
    dtypes = iter(tuple(results))
    found = [
        _cast(x, torch_dtype(dtype))
        if isinstance(x, torch.Tensor) and (dtype := next(dtypes, ""))
        else x
        for x in leaves
    ]
    return pytree.tree_unflatten(found, structure)


def _waited(made: Any) -> Any:
    """Return a result when it is complete."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return made
