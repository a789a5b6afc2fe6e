"""Storages that ops write in place, for programs with some of their ops restored.

All values that share a storage are views of one tensor. So it is kept full as a whole
as soon as one of the ops that make, view or write it is restored.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.probes.lockstep import Walk
from amprewrite.ir import Op, ProgramGraph


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
            for name, found in regions.items()
            if name not in graph.producer or len(found) > 1
        )

    @cached_property
    def values(self) -> frozenset[str]:
        """The values in written storages, and the ops that make them."""
        held = [n for n in self.graph.values if self.graph.storage(n) in self.written]
        return frozenset((*held, *self.of_op))

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

    def current(self, ours: Walk, theirs: Walk, prefix: str) -> Mapping[Node, Node]:
        """Return the casts that hold a written storage, by the nodes that they cast.

        Where a storage is kept in another dtype than the op makes, views and writes go
        to the cast of it.

        Args:
            ours: The rewritten graph.
            theirs: The original one.
            prefix: Prefix of the names of ops in this body.
        """
        found: dict[Node, Node] = {}
        for node in ours.graph.nodes if self.written else ():
            twin = theirs.named.get(node.name)
            name = prefix + node.name
            if twin is None or name not in self.of_op or name in self.makers:
                continue
            for read, used in zip(_read(node), _read(twin), strict=False):
                known = ours.named.get(used.name)
                if known is None or known is read:
                    continue
                if prefix + used.name in self.values:
                    found[known] = read
        return found

    def _touched(self, op: Op) -> set[str]:
        return set(map(self.graph.storage, (*op.operands, *op.results)))

    def _changed(self, op: Op) -> set[str]:
        written = (op.operands[index] for index in op.mutates)
        return set(map(self.graph.storage, (*written, *op.results)))


def _read(node: Node) -> list[Node]:
    """Return the nodes among the arguments of a node, in order."""
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Node)]
