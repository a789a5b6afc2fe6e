"""Restore ops of a converted module to those of the original, on one capture of it.

Both graphs name their ops alike. A restored op is called with the values that the
rewritten graph has under the names of the operands of the original, before any cast of
them; its result is kept as it is for restored readers, and rounded for all others.

All values that share a storage are views of one tensor. So a storage that an op writes
in place is kept full as a whole as soon as one of the ops that create, view or write it
is restored, and rounded again for each reader.
"""

import time
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import getitem
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.ops import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.comparison.compare import Walker, walker_of
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import without_any_autocast
from amprewrite.frameworks.torch_fx.compat.threads import one_at_a_time
from amprewrite.frameworks.torch_fx.executor import (
    Draws,
    Executor,
    Observer,
    Operands,
    structured,
)
from amprewrite.frameworks.torch_fx.probes.runner import floats, is_inexact
from amprewrite.ir import Op, ProgramGraph
from amprewrite.measure.runs import Ablation, Call, Run
from amprewrite.plan import Decision


@one_at_a_time
def ablation(original: Any, converted: Any, call: Call) -> Ablation | str:
    """Return a converted module with ops that can be restored, or why there is none.

    Args:
        original: The model.
        converted: The converted model.
        call: The arguments.
    """
    walker = walker_of(original, converted, call)
    if isinstance(walker, str):
        return "the converted model has no graph of the whole model"
    with walker.isolated():
        graph = walker.read()
    return graph if isinstance(graph, str) else _Ablation(walker)


class _Ablation:
    """A converted module, of which each run restores other ops.

    Args:
        walker: The module and the original, captured once.
    """

    def __init__(self, walker: Walker) -> None:
        """Keep the capture; nothing is run."""
        self.walker, self.plan, self.graph = walker, walker.plan, walker.program.graph
        self.storages = Storages(self.graph)
        self.restorable = self.storages.restorable
        self.seconds: dict[str, float] = {}

    @one_at_a_time
    def run(self, restored: Collection[str]) -> Run:
        converted, module = self.walker.converted, self.walker.program.module
        rewritten = converted.rewritten
        assert rewritten is not None

        def run(*args: Any, **kwargs: Any) -> Any:
            inputs = pytree.tree_leaves((args, kwargs))
            restoring = Restoring(
                Executor(module, module.graph),
                self.plan.by_op,
                self.storages,
                frozenset(restored),
                self.seconds,
            )
            executor = Executor(converted, rewritten.graph, inputs, restoring)
            with without_any_autocast():
                return structured(rewritten.graph, restoring.run(executor))

        return self.walker.runner.run(converted, run)


@dataclass(frozen=True)
class Storages:
    """The storages of a program that some op writes in place.

    Attributes:
        graph: The program.
    """

    graph: ProgramGraph

    @cached_property
    def restorable(self) -> frozenset[str]:
        """The ops that can be restored.

        Those that touch a written storage of an input or a weight, or one that passes
        into a body, cannot: the converted program shares it.
        """
        fixed = self._fixed
        return frozenset(
            op.name
            for op in self.graph.ops
            if op.results and fixed.isdisjoint(self._touched(op))
        )

    @cached_property
    def _fixed(self) -> frozenset[str]:
        graph = self.graph
        regions: dict[str, set[str]] = {name: set() for name in graph.written}
        for op in graph.ops:
            for name in self._touched(op):
                if name in regions:
                    regions[name].add(op.region)
        return frozenset(
            name
            for name, places in regions.items()
            if name not in graph.producer or len(places) > 1
        )

    @cached_property
    def values(self) -> frozenset[str]:
        """The values in written storages, and the ops that make them."""
        graph = self.graph
        stored = (name for name in graph.values if graph.storage(name) in self.written)
        return frozenset((*stored, *self.of_op))

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the written storages that can be kept full."""
        return self.graph.written - self._fixed

    @cached_property
    def of_op(self) -> Mapping[str, str]:
        """The written storage of each op that makes, views or writes one."""
        return {
            op.name: name
            for op in self.graph.ops
            for name in self._changed(op)
            if name in self.written
        }

    @cached_property
    def makers(self) -> frozenset[str]:
        """The ops that make a written storage anew."""
        return frozenset(self.graph.producer[name].name for name in self.written)

    def full(self, restored: Collection[str]) -> frozenset[str]:
        """Return the storages that are kept full where some ops are restored."""
        return frozenset(self.of_op[name] for name in restored if name in self.of_op)

    def current(self, ours: Executor, theirs: Executor) -> Mapping[Node, Node]:
        """Return the casts that hold a written storage, by the nodes that they cast.

        Where a storage is kept in another dtype than the op makes, views and writes go
        to the cast of it.

        Args:
            ours: The rewritten graph, or a body of it.
            theirs: The original one.
        """
        casts: dict[Node, Node] = {}
        for node in ours.graph.nodes if self.written else ():
            twin = theirs.named.get(node.name)
            name = ours.prefix + node.name
            if twin is None or name not in self.of_op or name in self.makers:
                continue
            for cast, operand in zip(_read(node), _read(twin), strict=False):
                source = ours.named.get(operand.name)
                if source is None or source is cast:
                    continue
                if ours.prefix + operand.name in self.values:
                    casts[source] = cast
        return casts

    def _touched(self, op: Op) -> set[str]:
        return set(map(self.graph.storage, (*op.operands, *op.results)))

    def _changed(self, op: Op) -> set[str]:
        written = (op.operands[index] for index in op.mutates)
        return set(map(self.graph.storage, (*written, *op.results)))


def _read(node: Node) -> list[Node]:
    """Return the nodes among the arguments of a node, in order."""
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Node)]


@dataclass
class Restoring(Observer):
    """Observer of the run of a rewritten graph, which restores some of its ops.

    Values that stay full are the shadows of those that the rewritten graph has.

    Attributes:
        theirs: The original graph; none of its nodes is run but those of restored ops.
        decisions: The decisions of the plan, by op.
        storages: Storages that ops write in place.
        restored: Ops and inserted nodes to restore.
        seconds: Receives the additional time of each op that is restored.
    """

    theirs: Executor
    decisions: Mapping[str, Decision]
    storages: Storages
    restored: Collection[str]
    seconds: MutableMapping[str, float]
    _current: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def __post_init__(self) -> None:
        """Find the storages that are full."""
        self._whole = self.storages.full(self.restored)

    def run(self, executor: Executor) -> Any:
        """Run a rewritten graph, or a body of it, and return its outputs."""
        self._current.update(self.storages.current(executor, self.theirs))
        return executor.run()

    def also_reads(self, executor: Executor, node: Node) -> Iterable[Node]:
        """Yield the values that the original's op reads, and casts of them."""
        twin = self.theirs.named.get(node.name)
        for operand in () if twin is None else twin.all_input_nodes:
            value = executor.named.get(operand.name)
            if value is not None:
                yield value
            if value in self._current:
                yield self._current[value]

    def enters(self, executor: Executor, node: Node) -> bool:
        """Return whether ops of a body may be restored."""
        name = executor.prefix + node.name
        return node.name in self.theirs.named and name not in self.decisions

    def on_read(self, executor: Executor, node: Node, operand: Node) -> Any:
        """Return an operand; one that is kept full is rounded anew, or read as it is.

        An op that runs as converted reads it full if it computes in full precision: it
        would if the plan kept the operand full, also where its kernel promotes a low
        operand without a cast.
        """
        full = executor.shadows.get(operand)
        if full is None:
            return executor.values[operand]
        if self._whole:  # it may have been written since
            executor.values[operand] = _like(full, executor.values[operand])
        decision = self.decisions.get(executor.prefix + node.name)
        dtypes = {dtype_name(x.dtype) for x in floats(full)}
        reads_full = decision is not None and dtypes == {decision.precision}
        return full if reads_full else executor.values[operand]

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op as converted, or of the original's."""
        name, twin = executor.prefix + node.name, self.theirs.named.get(node.name)
        if twin is None:
            return self._inserted(executor, node, name, executor.call(node, operands))
        if name in self.storages.restorable and self._replaces(executor, node, name):
            return self._restore(executor, (node, twin), name)
        value = executor.call(node, operands)
        if node.target is getitem and node.args[0] in executor.shadows:
            executor.shadows[node] = executor.shadows[node.args[0]][node.args[1]]
        elif self._is_whole(name):
            executor.shadows[node] = _like(value, twin.meta.get("val"))
        return value

    def on_body(self, executor: Executor, node: Node, inner: Executor) -> Any:
        """Run a body beside that of the original."""
        outer, twin = self.theirs, self.theirs.named[node.name]
        self.theirs = outer.body(twin, partial(self._exact, executor))
        try:
            with inner.mode():
                return self.run(inner)
        finally:
            self.theirs = outer

    def _is_whole(self, name: str) -> bool:
        """Return whether an op creates, views or writes a storage that is kept full."""
        return self.storages.of_op.get(name) in self._whole

    def _replaces(self, executor: Executor, node: Node, name: str) -> bool:
        """Return whether an op is restored, or moves values that are kept full."""
        moves = self.decisions[name].op_class == "follow"
        follows = moves and any(n in executor.shadows for n in node.all_input_nodes)
        writes = self._is_whole(name) and name not in self.storages.makers
        return follows or writes or name in self.restored

    def _inserted(self, executor: Executor, node: Node, name: str, value: Any) -> Any:
        """Return the value of an inserted node; one that is kept full is handed on."""
        operands = node.all_input_nodes if node.op == "call_function" else ()
        source = next(
            (n for n in operands if _is_alike(executor.values[n], value)), None
        )
        if source is None:
            return value
        full = executor.shadows.get(source)
        if full is not None and full.dtype == value.dtype:
            value = executor.shadows[node] = full
        if name in self.restored:
            return (executor.values[source] if full is None else full).to(value.dtype)
        return value

    def _restore(self, executor: Executor, nodes: tuple[Node, Node], name: str) -> Any:
        """Return the result of the original's op, rounded as planned."""
        (node, twin), theirs = nodes, self.theirs
        operands = theirs.operands(twin, partial(self._exact, executor))
        draws = Draws(node)
        start = time.perf_counter()
        value = _waited(theirs.call(twin, operands))
        seconds = time.perf_counter() - start
        timed = name in self.restored and name not in self.storages.of_op
        if timed and name not in self.seconds:
            draws.rewind()
            low = executor.operands(node, executor.values.__getitem__)
            start = time.perf_counter()
            _waited(executor.call(node, low))
            self.seconds[name] = seconds - (time.perf_counter() - start)
        executor.shadows[node] = value
        return _rounded(value, self.decisions[name].results)

    def _exact(self, executor: Executor, operand: Node) -> Any:
        """Return the original's value under a name, as far as it is kept full."""
        if operand.op == "get_attr":
            return self.theirs.values[operand]
        node = executor.named[operand.name]
        if node in executor.shadows:
            return executor.shadows[node]
        if node in self._current:
            node = self._current[node]
        return _like(executor.values[node], operand.meta.get("val"))


def _is_alike(left: object, right: object) -> bool:
    return is_inexact(left) and is_inexact(right) and left.shape == right.shape


def _like(value: Any, traced: Any) -> Any:
    """Return ``value`` in the dtypes that the original was traced with."""
    examples = pytree.tree_leaves(traced)
    leaves, structure = pytree.tree_flatten(value)
    if len(examples) != len(leaves):
        return value
    pairs = zip(leaves, examples, strict=True)
    return pytree.tree_unflatten([_cast(x, _dtype(e)) for x, e in pairs], structure)


def _dtype(traced: object) -> torch.dtype | None:
    return traced.dtype if isinstance(traced, torch.Tensor) else None


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    return value.to(dtype) if dtype is not None and is_inexact(value) else value


def _rounded(value: Any, results: Iterable[str]) -> Any:
    """Return results of an op in the dtypes that the plan gives them."""
    leaves, structure = pytree.tree_flatten(value)
    dtypes = iter(tuple(results))
    rounded = [
        _cast(x, torch_dtype(dtype))
        if isinstance(x, torch.Tensor) and (dtype := next(dtypes, ""))
        else x
        for x in leaves
    ]
    return pytree.tree_unflatten(rounded, structure)


def _waited(value: Any) -> Any:
    """Return a result when it is complete."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return value
