"""Check in-place writes: a rewritten program must read the values the model reads.

A cast makes a copy. A write to the copy does not change the value, and a copy made
before a write does not contain it. Both programs are therefore evaluated on numbers in
place of tensors (value numbering): a storage has a number for its content, each write
changes it, and each op reads the numbers of its operands. A cast passes its operand's
number on. The rewritten program is right if every op, every output and every written
input has the same number as in the model.

Source: value numbering, as in Alpern, Wegman and Zadeck, "Detecting equality of
variables in programs" (1988).
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from torch.fx import GraphModule, Node

from amprewrite.errors import GraphError
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.rewrite.aliasing import (
    gives_alias,
    is_copied_at_once,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Leaves, Reading, occurrences
from amprewrite.frameworks.torch_fx.rewrite.views import is_viewed_again
from amprewrite.ir import Op

Held: TypeAlias = "tuple[str, int] | list[Held] | None"
"""The tensors of a node as (name of the value, index of its storage)."""

Numbers = dict[tuple[object, ...], int]
"""A number for each distinct expression."""


@dataclass
class Contents:
    """Value numbers of everything that a program reads.

    Attributes:
        reads: Numbers of the operands of each op, by its name.
        outputs: Numbers of the outputs.
        inputs: Numbers of the inputs, weights and buffers when the program ends.
        shared: Ops that may share a written storage with an operand, though they copied
            in the model.
        numbers: Numbers assigned so far.
    """

    reads: dict[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    outputs: tuple[int, ...] = ()
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    shared: list[str] = field(default_factory=list[str])
    numbers: Numbers = field(default_factory=Numbers)


def contents(reading: Reading, before: Contents | None = None) -> Contents | None:
    """Return the value numbers of a program; None if it writes nothing in place.

    Args:
        reading: The program, as read or since rewritten.
        before: Its value numbers before it was rewritten; None if it was not.
    """
    if not reading.graph.written:
        return None
    return _Walk(reading, before).run()


def check_writes(reading: Reading, before: Contents | None) -> None:
    """Check that a rewritten program reads the same value numbers as before.

    Args:
        reading: The program.
        before: Its value numbers before, from :func:`contents`.

    Raises:
        GraphError: A number of an op, an output or an input differs from the model's.
    """
    after = contents(reading, before)
    if before is None or after is None:
        return
    for op in reading.graph.ops:
        if before.reads[op.name] != after.reads[op.name]:
            raise _refusal(f"{op.name} ({op.native}) at {op.source or op.path}")
    pairs = zip(before.outputs, after.outputs, strict=True)
    for index, (one, other) in enumerate(pairs):
        if one != other:
            raise _refusal(f"output {index}")
    for name, number in before.inputs.items():
        if after.inputs[name] != number:
            raise _refusal(f"%{name} after the call")
    for name in after.shared:
        raise _refusal(f"{name}, once a copy and now a view,")


def _refusal(where: str) -> GraphError:
    msg = (
        f"a cast parts {where} from a write in place: it would lack the values that "
        f"the model writes; want every read after a write to see it; keep the ops that "
        f"write in full precision by overrides, or use a plan made for this program"
    )
    return GraphError(msg)


class _Walk:
    def __init__(self, reading: Reading, before: Contents | None) -> None:
        self.graph, self.reading = reading.graph, reading
        self.rewritten = before is not None
        numbers = before.numbers if before else Numbers()
        self.found = Contents(numbers=numbers)
        self.ops = {s.node: self.graph.op_by_name[n] for n, s in reading.sites.items()}
        self.held: dict[Node, Held] = {}
        self.content: list[int] = []  # by storage
        self.homes: dict[str, int] = {}  # storages by the values that own them
        self.shared: dict[int, str] = {}

    def run(self) -> Contents:
        """Evaluate the program once."""
        outputs = self._scope(self.reading.module, None)
        self.found.outputs = tuple(self._read(part) for part in _parts(outputs))
        for value in self.graph.inputs():
            if value.alias in self.homes:
                content = self.content[self.homes[value.alias]]
                self.found.inputs[value.name] = content
        return self.found

    def _number(self, *key: object) -> int:
        return self.found.numbers.setdefault(key, len(self.found.numbers))

    def _read(self, part: tuple[str, int]) -> int:
        name, storage = part
        return self._number("read", name, self.content[storage])

    def _new(self, content: int) -> int:
        self.content.append(content)
        return len(self.content) - 1

    def _scope(self, owner: GraphModule, given: list[Held] | None) -> Held:
        arguments = iter(given or ())
        outputs: Held = None
        for node in owner.graph.nodes:
            if node.op == "placeholder" and given is not None:
                self.held[node] = next(arguments)
            elif node.op in ("placeholder", "get_attr"):
                self.held[node] = self._given(self.reading.leaves.get(node))
            elif node.op == "call_function":
                self.held[node] = self._call(node)
            elif node.op == "output":
                outputs = self._structure(node.args[0])
        return outputs

    def _given(self, leaves: Leaves) -> Held:
        if isinstance(leaves, list):
            return [self._given(part) for part in leaves]
        if leaves is None:
            return None
        owner = self.graph.storage(leaves)
        if owner not in self.homes:
            self.homes[owner] = self._new(self._number("given", owner))
        return leaves, self.homes[owner]

    def _structure(self, args: Any) -> Held:
        if isinstance(args, Node):
            return self.held.get(args)
        if isinstance(args, dict):
            args = list(cast("dict[str, object]", args).values())
        if pytrees.is_sequence(args):
            return [self._structure(part) for part in args]
        return None

    def _call(self, node: Node) -> Held:
        if node in self.reading.bodies:
            body, start = self.reading.bodies[node]
            return self._scope(body, [self._structure(a) for a in node.args[start:]])
        op = self.ops.get(node)
        if op is not None:
            return self._op(op, node)
        if node.target is operator.getitem and not is_viewed_again(node):
            source, index = pytrees.positional(node)
            held = self.held.get(source)
            return held[index] if isinstance(held, list) else held
        return self._copy(node)

    def _copy(self, node: Node) -> Held:
        """Return the tensors of an inserted node: each copies its operand."""
        parts = list(self._operands(node))
        if not parts:
            return None
        name, storage = parts[0]
        if is_viewed_again(node):
            again = self.reading.leaves.get(node)
            return again if isinstance(again, str) else name, storage
        return name, self._new(self.content[storage])

    def _operands(self, node: Node) -> Iterator[tuple[str, int]]:
        for used in occurrences(node):
            yield from _parts(self.held.get(used))

    def _op(self, op: Op, node: Node) -> Held:
        parts = list(self._operands(node))
        reads = tuple(self._read(part) for part in parts)
        if op.canonical == "cast":  # the tensor that only names the dtype is left out
            reads = reads[:1]
        self.found.reads[op.name] = reads
        for index in op.mutates:
            storage = parts[index][1]
            self.content[storage] = self._number("write", op.name, index, reads)
            if storage in self.shared:
                self.found.shared.append(self.shared[storage])
        storages = {
            name: self._result(op, node, name, parts, reads) for name in op.results
        }
        return _named(self.reading.leaves.get(node), storages)

    def _may_share(self, op: Op, node: Node) -> bool:
        return self.rewritten and gives_alias(op, node, self.graph)

    def _result(
        self,
        op: Op,
        node: Node,
        name: str,
        parts: list[tuple[str, int]],
        reads: tuple[int, ...],
    ) -> int:
        """Return the storage of a result."""
        owner = self.graph.storage(name)
        if owner == name:
            made = self._number("op", op.name, op.results.index(name), reads)
            storage = self.homes[name] = self._new(made)
            if self._may_share(op, node) and not is_copied_at_once(node):
                self.shared[storage] = self.shared[parts[0][1]] = op.name
            return storage
        views = [i for i, n in enumerate(op.operands) if self.graph.storage(n) == owner]
        views.sort(key=lambda index: index not in op.mutates)
        if not views or views[0] >= len(parts):
            return self.homes[owner]
        storage = parts[views[0]][1]
        if op.canonical == "cast" and not _same_dtype(node):
            return self._new(self.content[storage])
        return storage


def _same_dtype(node: Node) -> bool:
    source: Any = node.args[0]
    return source.meta["val"].dtype == node.meta["val"].dtype


def _parts(held: Held) -> Iterator[tuple[str, int]]:
    if isinstance(held, tuple):
        yield held
    elif held is not None:
        for part in held:
            yield from _parts(part)


def _named(leaves: Leaves, storages: dict[str, int]) -> Held:
    if isinstance(leaves, list):
        return [_named(part, storages) for part in leaves]
    return None if leaves is None else (leaves, storages[leaves])
