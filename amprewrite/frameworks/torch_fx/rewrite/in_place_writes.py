"""Keep the meaning of writes in place: copies, views, the order of reads and writes."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch.fx import GraphModule, Node

from amprewrite.errors import GraphError
from amprewrite.frameworks.torch_fx.aten.ops import packet_name
from amprewrite.frameworks.torch_fx.compat import operators, pytrees, tensor_internals
from amprewrite.frameworks.torch_fx.rewrite.read import Leaves, Reading, occurrences
from amprewrite.ir import Op, ProgramGraph
from amprewrite.plan.uses import View

# Ops that return a view or a copy, depending on dtypes and strides.
#
# ``x.to(bfloat16)`` copies a float32 value and returns a bfloat16 one itself;
# ``reshape`` of a slice copies, but of a dense cast of the slice it returns a view. If
# the model writes to either tensor, a copy must remain a copy.

aten = torch.ops.aten

UNDECLARED = frozenset(("type_as",))
"""Ops that may return their operand itself without declaring it in their schema."""


def gives_alias(op: Op, node: Node, graph: ProgramGraph) -> bool:
    """Return whether an op that copied in the model may return a view now.

    Args:
        op: The op.
        node: Its node in the rewritten graph.
        graph: The traced program.
    """
    if len(op.results) != 1 or not op.operands or not _may_alias(node):
        return False
    name, result = op.operands[0], op.results[0]
    if graph.storage(name) == graph.storage(result):
        return False
    source = node.args[0]
    if not isinstance(source, Node):
        return False
    if op.canonical == "cast":
        return source.meta["val"].dtype == node.meta["val"].dtype
    traced = graph.values[name].dtype
    return is_inserted(source) or str(source.meta["val"].dtype) != f"torch.{traced}"


def is_inserted(node: Node) -> bool:
    """Return whether the writer inserted ``node``."""
    return "amprewrite" in node.meta


def is_copied_at_once(node: Node) -> bool:
    """Return whether all users of ``node`` are copies that directly follow it."""
    following, directly = node.next, set[Node]()
    while is_inserted(following):
        directly.add(following)
        following = following.next
    return bool(node.users) and directly.issuperset(node.users)


def _may_alias(node: Node) -> bool:
    """Return whether an op declares a view as result, or is known to return one."""
    if not operators.is_overload(node.target):
        return False
    declared = operators.results_alias(node.target)
    return declared or packet_name(node.target) in UNDECLARED


def keep_copy(reading: Reading, op: Op, node: Node) -> None:
    """Insert a copy of ``op``'s result if it may share a storage that is written to."""
    graph = reading.graph
    if not graph.written or not gives_alias(op, node, graph):
        return
    storages = {graph.storage(op.operands[0]), op.results[0]}
    if not storages & graph.written:
        return
    readers = list(node.users)
    with node.graph.inserting_before(node.next):
        copy = node.graph.call_function(aten.clone.default, (node,))
    copy.meta = {**node.meta, "amprewrite": "copy kept"}
    reading.leaves[copy] = op.results[0]
    for reader in readers:
        reader.replace_input_with(node, copy)


# Rebuild views on the cast of their base, so that outputs share a storage.
#
# A model may return a tensor and views of it, and its caller may write to one and read
# another. Separate casts of each would not share a storage.

VIEWED_AGAIN = "viewed again"
"""Mark of the nodes inserted here, in their ``meta["amprewrite"]``."""


def is_viewed_again(node: Node) -> bool:
    """Return whether ``node`` was inserted here."""
    return node.meta.get("amprewrite") == VIEWED_AGAIN


def view_again(
    reading: Reading, base: Node, path: Sequence[View], before: Node
) -> Node:
    """Insert the views on ``path`` with ``base`` as their base; return the last.

    Args:
        reading: The program.
        base: The base of the views, in the wanted dtype.
        path: Views, starting at the value that ``base`` is the cast of; in-place writes
            on it are part of ``base`` already.
        before: Node before which the views are inserted.
    """
    views = [(op, n) for op, n in path if not op.mutates and op.canonical != "cast"]
    if not views:  # an alias, to have the name of the written value
        with before.graph.inserting_before(before):
            whole = before.graph.call_function(aten.alias.default, (base,))
        whole.meta = {"val": base.meta["val"], "amprewrite": VIEWED_AGAIN}
        base = whole
    for op, name in views:
        node = reading.sites[op.name].node
        with before.graph.inserting_before(before):
            base = _again(node, base)
            if isinstance(reading.leaves.get(node), list):
                index = op.results.index(name)
                val = base.meta["val"][index]
                base = before.graph.call_function(operator.getitem, (base, index))
                base.meta = {"val": val, "amprewrite": VIEWED_AGAIN}
    reading.leaves[base] = path[-1][1]  # a write gives the view that it writes to
    return base


def _again(node: Node, base: Node) -> Node:
    """Insert a copy of an op with one or more views, with ``base`` as input."""
    dtype = base.meta["val"].dtype
    retyped = tensor_internals.retyped
    val = pytrees.pytree.tree_map(lambda v: retyped(v, dtype), node.meta["val"])
    made = base.graph.node_copy(node)
    made.update_arg(0, base)
    made.meta = {"val": val, "amprewrite": VIEWED_AGAIN}
    return made


# Check in-place writes: a rewritten program must read the values the model reads.
#
# A cast makes a copy. A write to the copy does not change the value, and a copy made
# before a write does not contain it. Both programs are therefore evaluated on numbers
# in place of tensors (value numbering): a storage has a number for its content, each
# write changes it, and each op reads the numbers of its operands. A cast passes its
# operand's number on. The rewritten program is right if every op, every output and
# every written input has the same number as in the model.
#
# Source: value numbering, as in Alpern, Wegman and Zadeck, "Detecting equality of
# variables in programs" (1988).

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
        storages = {r: self._result(op, node, r, parts, reads) for r in op.results}
        return _named(self.reading.leaves.get(node), storages)

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
            is_view = self.rewritten and gives_alias(op, node, self.graph)
            if is_view and not is_copied_at_once(node):
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
