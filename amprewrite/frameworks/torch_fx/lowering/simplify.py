"""Passes that leave out ops of a lowered graph, in any layout and for any kernel.

The passes stand in the order in which :mod:`lower_graph` runs them. Questions about the
memory of values, which several passes ask, stand at the end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import operators, tensor_internals
from amprewrite.frameworks.torch_fx.executor import attribute, constant_values
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

# Remove ops that return their operand itself: dropout in eval mode, equal casts.

REMOVED = "without effect removed"

_DROPOUTS = frozenset(
    (
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.feature_dropout.default,
        aten.feature_alpha_dropout.default,
    )
)
"""Ops that return their operand unless they train (at::dropout, Dropout.cpp)."""


def remove_no_ops(graph: Graph) -> tuple[Lowering, ...]:
    """Replace ops by their operand where they return it as it is.

    Between a cast and an op that promotes, a dropout keeps the two apart.

    Args:
        graph: The graph; it is changed in place.

    Returns:
        A record of all of them, if there are any.
    """
    found = [node for node in graph.nodes if _is_no_op(node)]
    for node in found:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    names = tuple(node.name for node in found)
    return (Lowering("no_ops", names, REMOVED),) if names else ()


def _is_no_op(node: Node) -> bool:
    if node.target in _DROPOUTS:
        return node.kwargs.get("train", (*node.args, None, None)[2]) is False
    if not is_cast(node):
        return False
    source, dtype = node.args
    return dtype_of(source) == dtype


# Merge ops that compute the same of the same operands: a mask in each layer.

MERGED = "merged with an equal op before"

_NUMBERS = frozenset(("_operator", "builtins", "math"))
"""Modules of functions of numbers and tuples, which change no state."""


def merge_repeats(graph: Graph, owner: nn.Module | None = None) -> tuple[Lowering, ...]:
    """Replace ops by an earlier one with the same target and operands.

    Left alone are ops with an operand or a result in memory that the graph writes to,
    and results that the caller gets, which may write to one of them. After a call of a
    function that may change the state of torch (gradients, autocast) only ops that
    follow it are merged.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    memory = Memory(graph, owner)
    known: dict[object, Node] = {}
    names: list[str] = []
    for node in graph.nodes:
        if _may_change_state(node):
            known.clear()
        concerned = (node, *node.all_input_nodes)
        exposed = memory.is_written(concerned) or memory.is_returned(concerned)
        if exposed or not computes(node):
            continue
        key = node.target, _key(node.args), _key(node.kwargs)
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            names.append(node.name)
    return (Lowering("repeats", tuple(names), MERGED),) if names else ()


def _may_change_state(node: Node) -> bool:
    """Return whether a node may do something else than compute or write to values."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    target: Any = node.target
    if operators.is_overload(target) or operators.is_higher_order(target):
        return False
    return getattr(target, "__module__", None) not in _NUMBERS


def _key(value: object) -> object:
    """Return a key of an argument, equal for equal ones.

    Numbers of two types, and zeros of two signs, are different.
    """
    if isinstance(value, Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, cast("list[object]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return tuple((name, _key(held)) for name, held in pairs)
    return type(value), repr(value)


# Leave out casts to the low dtype of values that are read in full precision alone.

KEPT_FULL = "not rounded between ops in full precision"

FULL = torch.float32
"""The dtype from which values are rounded, and to which they are widened again."""


def remove_round_trips(
    graph: Graph, owner: nn.Module | None = None
) -> tuple[Lowering, ...]:
    """Give readers that widen a rounded value the value before it was rounded.

    A norm of transformers ends with ``weight * x.to(input_dtype)``, with a weight in
    float32: the product promotes, and the rounding before it is one more. Casts that a
    model pins (``x.to(torch.bfloat16)``, ``x.half()``) stay, as they are meant, and so
    do those of values in memory that is written to. A value that is rounded for one
    reader is rounded for all: two casts of it are equal, and their difference is zero.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    rounded = [node for node in graph.nodes if _rounds(node) and node.users]
    found = {n: None for n in rounded if all(_widens(user) for user in n.users)}
    if not found:
        return ()
    memory = Memory(graph, owner)
    stays = {
        memory.shared_by(node)
        for node in graph.nodes
        if _is_low(node) and is_cast(node) and node not in found
    }
    for node in found:  # without the casts, the caller would get memory of the source
        if memory.is_returned([user for user in node.users if is_cast(user)]):
            stays.add(memory.shared_by(node))
    names: list[str] = []
    for node in found:
        source: Any = node.args[0]
        casts = [user for user in node.users if is_cast(user)]
        if memory.is_written((node, source)) or memory.shared_by(node) in stays:
            continue
        node.replace_all_uses_with(source)
        for widened in casts:
            widened.replace_all_uses_with(source)
        for unread in (node, *casts):
            graph.erase_node(unread)
            names.append(unread.name)
    return (Lowering("round_trips", tuple(names), KEPT_FULL),) if names else ()


def is_cast(node: Node) -> bool:
    """Return whether a node is a cast of a tensor to a dtype, and nothing else."""
    return node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs  # noqa: PLR2004  # the operand, the dtype


def value_of(node: object) -> Any:
    """Return the value of a node without numbers; None of anything else."""
    return node.meta.get("val") if isinstance(node, Node) else None


def rank_of(node: object) -> int:
    """Return the number of dimensions of the value of a node; 0 without a tensor."""
    value = value_of(node)
    return value.dim() if isinstance(value, torch.Tensor) else 0


def dtype_of(node: object) -> torch.dtype | None:
    """Return the dtype of the value of a node; None if it is no tensor."""
    value = value_of(node)
    return value.dtype if isinstance(value, torch.Tensor) else None


def _rounds(node: Node) -> bool:
    """Return whether the plan, not the model, rounds a value here."""
    if not is_cast(node) or dtype_of(node.args[0]) is not FULL:
        return False
    chosen = node.meta.get("amprewrite") == "cast" or node.meta.get(CHOSEN) == "follows"
    return chosen and _is_low(node)


def _is_low(node: Node) -> bool:
    dtype = dtype_of(node)
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4  # noqa: PLR2004  # the bytes of float32


def _widens(node: Node) -> bool:
    """Return whether an op gives the float32 that its operands promote to."""
    if dtype_of(node) is not FULL or not operators.is_overload(node.target):
        return False
    if is_cast(node):
        return True
    is_pointwise = torch.Tag.pointwise in node.target.tags
    return is_pointwise and not operators.is_mutable(node.target)


# Fold values that depend on no input and no weight: masks, positions, buckets.

MOST_BYTES = 8 * 2**20
"""Largest number of bytes of folded values in one program.

It is a mask of 1,448 by 1,448 positions in float32. To compute a larger one takes
little time beside the ops that read it.
"""

COMPUTED_ONCE = "computed once"

FOLDED = "folded"
"""Key in the meta of a node: its value, which was computed once."""


def fold_constants(
    graph: Graph, owner: nn.Module, constants: Collection[str]
) -> tuple[Lowering, ...]:
    """Replace values that depend on constants alone by tensors.

    A node of such a value becomes a ``get_attr`` with the tensor in its meta. A value
    is left alone if a caller could write to it: it is an output, or an op writes to it
    or to a view of it.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with the attributes of the graph.
        constants: Names of attributes that nothing writes to.

    Returns:
        A record for each value, with the ops that made it and nothing else.
    """
    storages = storages_of(graph, owner)
    written = {storages[n] for node in graph.nodes for n in _written(node)}
    known: set[Node] = set()
    for node in graph.nodes:
        is_constant = computes(node) and known.issuperset(node.all_input_nodes)
        if node.op == "get_attr":
            is_constant = str(node.target) in constants
        if is_constant and storages[node] not in written:
            known.add(node)
    exposed = {storages[n] for n in graph.output_node().all_input_nodes}
    last = [
        node
        for node in graph.nodes
        if node in known and node.op != "get_attr" and storages[node] not in exposed
        if any(user not in known for user in node.users)
    ]
    values = constant_values(owner, graph, last)
    tensors = [(n, values[n]) for n in last if isinstance(values[n], torch.Tensor)]
    sizes = {node: value.untyped_storage().nbytes() for node, value in tensors}
    above = {node: node.all_input_nodes for node in graph.nodes}
    folded: dict[Node, int] = {}
    left = MOST_BYTES
    for node in sorted(sizes, key=sizes.__getitem__):
        if sizes[node] > left:
            break
        left -= sizes[node]
        folded[node] = sizes[node]
        node.meta[FOLDED] = values[node]
        node.op, node.target, node.args, node.kwargs = "get_attr", FOLDED, (), {}
    gone: set[Node] = set()
    for node in reversed(graph.nodes):
        if not node.users and (computes(node) or node.op == "get_attr"):
            graph.erase_node(node)
            if node.op == "call_function":
                gone.add(node)
    return tuple(_records(folded, above, gone))


def _records(
    folded: Mapping[Node, int], above: Mapping[Node, list[Node]], gone: set[Node]
) -> Iterator[Lowering]:
    """Yield a record for each folded value.

    Args:
        folded: Bytes by node.
        above: The operands of each node before.
        gone: The ops that were removed with them; each belongs to one record.
    """
    for node in above:
        if node not in folded:
            continue
        found, below = [node], [*above[node]]
        while below:
            operand = below.pop()
            if operand in gone:
                gone.remove(operand)
                found.append(operand)
                below += above[operand]
        names = tuple(op.name for op in reversed(found))
        yield Lowering("constants", names, COMPUTED_ONCE, folded[node])


def written_values(graph: Graph, owner: nn.Module | None = None) -> set[Node]:
    """Return the nodes with values that a graph writes to, or may write to.

    Args:
        graph: The graph.
        owner: The module with its attributes, which may share their memory.
    """
    storages = storages_of(graph, owner)
    written = {storages[n] for node in graph.nodes for n in _written(node)}
    return {node for node, storage in storages.items() if storage in written}


def written_attributes(graph: Graph, owner: nn.Module | None = None) -> set[str]:
    """Return the names of the attributes that a graph writes to, or may write to."""
    written = written_values(graph, owner)
    return {str(n.target) for n in written if n.op == "get_attr"}


def computes(node: Node) -> bool:
    """Return whether an op gives the same result for the same operands each time."""
    if node.op != "call_function" or not operators.is_overload(node.target):
        return False
    pure = operators.is_pure(node.target) and "empty" not in node.target.name()
    return pure and not _written(node)


def _written(node: Node) -> list[Node]:
    """Return the operands that a node writes to, as far as it is known."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    target: Any = node.target
    if operators.is_overload(target):
        if operators.is_mutable(target):
            return node.all_input_nodes
        return operators.written_statistics(target, node.args, node.kwargs)
    reads = node.op == "call_function" and not operators.is_higher_order(target)
    return [] if reads else node.all_input_nodes


def storages_of(graph: Graph, owner: nn.Module | None = None) -> dict[Node, Node]:
    """Return for each node one that stands for all nodes that may share its storage.

    Inputs count as apart, though a caller may give one tensor twice.

    Args:
        graph: The graph.
        owner: The module with its attributes, which may share their memory.
    """
    above: dict[Node, Node] = {}

    def top(node: Node) -> Node:
        while above[node] is not node:
            node = above[node]
        return node

    for node in graph.nodes:
        above[node] = node
        if node.op == "call_function":
            for operand in _shared(node):
                above[top(operand)] = node
    held: dict[Any, Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        if owner is None or FOLDED in node.meta:
            continue
        if key := _memory_of(attribute(owner, str(node.target))):
            above[top(held.setdefault(key, node))] = top(node)
    return {node: top(node) for node in graph.nodes}


def _memory_of(value: object) -> Any:
    """Return a key of the memory of an attribute; None if it has none of its own.

    A sparse tensor has none, nor has one of a transform of ``torch.func``.
    """
    if not isinstance(value, torch.Tensor) or not tensor_internals.is_dense(value):
        return None
    try:
        return tensor_internals.storage_identity(value)
    except NotImplementedError:  # of a transform; dynamo cannot trace a question for it
        return None


def _shared(node: Node) -> Iterable[Node]:
    """Return the operands with which a result may share its storage."""
    target: Any = node.target
    if not operators.is_overload(target) or operators.results_alias(target):
        return node.all_input_nodes
    result = node.meta.get("val")
    return [
        operand
        for operand in node.all_input_nodes
        if tensor_internals.may_share_storage(result, operand.meta.get("val"))
    ]


# Cast a value before the copies that repeat it: keys that groups of heads share.

MOVED = "cast before the copies that repeat its operand"

_MOVES = frozenset(
    (
        aten.contiguous.default,
        aten.expand.default,
        aten.flatten.using_ints,
        aten.permute.default,
        aten.repeat.default,
        aten.repeat_interleave.self_int,
        aten.reshape.default,
        aten.squeeze.dim,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
    )
)
"""Ops that move the values of one tensor by its shape, not by its memory.

A cast before them gives the same bits as one after them.
"""


def cast_early(graph: Graph, owner: nn.Module | None = None) -> tuple[Lowering, ...]:
    """Move casts to fewer bytes above the ops that repeat values.

    Where four heads read the keys of one, three quarters of the cast are saved, and the
    copy is of half the bytes. Gradients would be summed in the low dtype. Left alone
    are values in memory that is written to, those with symbolic extents, and inputs and
    views, which may have other strides in a later call.

    Args:
        graph: The graph; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of all of them, if there are any.
    """
    narrowing = [node for node in graph.nodes if _narrows(node)]
    memory = Memory(graph, owner) if any(map(_source, narrowing)) else None
    names: list[str] = []
    for node in narrowing:
        source = _source(node)
        if source is None or memory is None:
            continue
        moves = _moves_to(node, source)
        if memory.is_written((node, source, *moves)):
            continue
        _move(node, source, moves)
        names.append(node.name)
    return (Lowering("early_casts", tuple(names), MOVED),) if names else ()


def _narrows(node: Node) -> bool:
    if not is_cast(node):
        return False
    source, cast = _value(node.args[0]), _value(node)
    if source is None or cast is None:
        return False
    return cast.dtype.is_floating_point and cast.dtype.itemsize < source.dtype.itemsize


def _value(node: object) -> torch.Tensor | None:
    """Return the fake value of a node; None without one, or with symbolic extents."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride())
    return value if all(type(number) is int for number in numbers) else None


def _has_no_gaps(value: torch.Tensor) -> bool:
    """Return whether the elements lie side by side, in some order of the extents."""
    wanted = 1
    pairs = zip(value.stride(), value.shape, strict=True)
    for stride, extent in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != wanted:
            return False
        wanted *= extent
    return True


def _source(cast: Node) -> Node | None:
    """Return the smallest value above a cast, from which ops only move; None if none.

    A cast keeps the strides of a value without gaps: with others, the ops below the
    cast might have to copy where they have a view, or the other way round.
    """
    moved = _value(cast.args[0])
    if moved is None or not _has_no_gaps(moved):
        return None
    least, found = moved.numel(), None
    for node in _above(cast):
        value = _value(node)
        if value is None:
            break
        target: Any = node.target
        is_new = operators.is_overload(target) and not operators.results_alias(target)
        if value.numel() < least and _has_no_gaps(value) and is_new:
            least, found = value.numel(), node
    return found


def _above(cast: Node) -> Iterator[Node]:
    """Yield the operands of the ops that move values to a cast, from below."""
    node: Any = cast.args[0]
    while isinstance(node, Node) and node.target in _MOVES and len(node.users) == 1:
        if node.all_input_nodes != [node.args[0]]:  # an extent is computed
            return
        above: Any = node.args[0]
        yield above
        node = above


def _moves_to(cast: Node, source: Node) -> list[Node]:
    """Return the ops between ``source`` and a cast, from above."""
    node, found = cast.args[0], list[Node]()
    while isinstance(node, Node) and node is not source:
        found.append(node)
        node = node.args[0]
    return found[::-1]


def _move(cast: Node, source: Node, moves: list[Node]) -> None:
    """Put a cast below ``source``, above the ops that only move."""
    dtype: torch.dtype = cast.meta["val"].dtype
    cast.replace_all_uses_with(moves[-1])
    moves[0].prepend(cast)
    cast.args = (source, cast.args[1])
    moves[0].replace_input_with(source, cast)
    cast.meta["val"] = source.meta["val"]
    for node in (cast, *moves):
        node.meta["val"] = tensor_internals.retyped(node.meta["val"], dtype)


def copied(graph: Graph) -> Graph:
    """Return a copy of a graph."""
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


class Memory:
    """Values of a graph by the memory in which they lie.

    A caller may give one tensor twice, or one of the module: where the graph writes to
    an input or an attribute, it may write to all of them.
    """

    def __init__(self, graph: Graph, owner: nn.Module | None = None) -> None:
        """Look at the ops of ``graph``, and at the attributes of ``owner``."""
        self._storages = storages = storages_of(graph, owner)
        written = {storages[node] for node in written_values(graph, owner)}
        given = {
            storages[node]
            for node in graph.nodes
            if node.op in ("placeholder", "get_attr")
        }
        self._written = written if written.isdisjoint(given) else written | given
        returned = graph.output_node().all_input_nodes
        self._returned = {storages[node] for node in returned}

    def shared_by(self, node: Node) -> Node:
        """Return a node that stands for all that may lie in the memory of ``node``."""
        return self._storages[node]

    def is_written(self, nodes: Iterable[Node]) -> bool:
        """Return whether the graph may write to the memory of one of ``nodes``."""
        return any(self._storages[node] in self._written for node in nodes)

    def is_returned(self, nodes: Iterable[Node]) -> bool:
        """Return whether the caller gets the memory of one of ``nodes``."""
        return any(self._storages[node] in self._returned for node in nodes)
