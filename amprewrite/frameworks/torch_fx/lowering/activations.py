"""Make one op of an activation that a model spells out in low precision.

``0.5 * x * (1 + tanh(0.7978 * (x + 0.0447 * x**3)))`` rounds eight times, the op once.
A formula is known by its values, not by its ops: each is evaluated in float64. GPT-2 of
four layers took 0.79 of the time with 1,024 tokens (AMX), at 0.90 of the error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node, map_arg

from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.compat import tensor_internals
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    Observer,
    Operands,
    evaluate,
)
from amprewrite.frameworks.torch_fx.lowering.simplify import Memory, dtype_of, is_cast
from amprewrite.plan.fields import Lowering

aten = torch.ops.aten

AS_ONE = "as one op, {}, rounded once"

MOST_OPS = 16
"""Largest number of ops of a formula that is tried."""

_LOW = frozenset((torch.bfloat16, torch.float16))

_WIDE = frozenset((torch.float32, torch.float64))

_ENDS = frozenset((aten.div.Tensor, aten.mul.Tensor))
"""Ops that end a formula: each activation below is a product, or a quotient."""

_OPS = frozenset(
    (
        *_ENDS,
        aten.add.Tensor,
        aten.erf.default,
        aten.exp.default,
        aten.neg.default,
        aten.pow.Tensor_Scalar,
        aten.reciprocal.default,
        aten.rsub.Scalar,
        aten.sigmoid.default,
        aten.square.default,
        aten.sub.Tensor,
        aten.tanh.default,
        aten.to.dtype,
    )
)
"""Ops of formulas: of each element alone, and without a draw."""

_GRID = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([-60.0, -1e-3, 1e-3, 60])])
"""Numbers at which a formula is compared with an activation."""

_CLOSE = 1e-6
"""Largest difference, absolute and relative: constants are often of seven digits.

Half of the last bit of bfloat16 is 2e-3, of float16 2.4e-4.
"""


@dataclass(frozen=True)
class Activation:
    """An op that computes an activation.

    Attributes:
        name: Its name in the record.
        target: The op.
        kwargs: Its keyword arguments.
    """

    name: str
    target: Any
    kwargs: Mapping[str, Any]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of each element."""
        return self.target(x, **self.kwargs)


ACTIVATIONS = (
    Activation("gelu", aten.gelu.default, {}),
    Activation("gelu of tanh", aten.gelu.default, {"approximate": "tanh"}),
    Activation("silu", aten.silu.default, {}),
)
"""Activations that models spell out."""


def name_activations(
    graph: Graph, owner: nn.Module | None = None
) -> tuple[Lowering, ...]:
    """Replace formulas of one value by the activation that they compute.

    Formulas in float32 alone stay as they are, bit for bit, and so do those with a cast
    that the model pins, and those of values that are written to.

    Args:
        graph: The graph, with values in the meta of its nodes; it is changed in place.
        owner: The module with its attributes.

    Returns:
        A record of each.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    ends = [node for node in graph.nodes if node.target in _ENDS]
    known: dict[object, Activation | None] = {}
    taken: set[Node] = set()
    found: list[tuple[Formula, Activation]] = []
    for end in reversed(ends):  # the larger formula first
        if end in taken:
            continue
        for formula in reversed([*_formulas(end, places)]):
            if (key := formula.key()) not in known:
                known[key] = _activation(formula)
            if (made := known[key]) is not None:
                found.append((formula, made))
                taken.update(formula.ops)
                break
    if not found:
        return ()
    memory = Memory(graph, owner)
    kept = [
        (formula, made)
        for formula, made in reversed(found)
        if not memory.is_written((*formula.ops, formula.root))
    ]
    results: dict[Node, Node] = {}
    for formula, made in kept:
        root = results.get(formula.root, formula.root)
        results[formula.ops[-1]] = _replace(graph, formula, root, made)
    return tuple(formula.record(made) for formula, made in kept)


class _WithoutCasts(Observer):
    """Observer that runs a formula in the dtype of its value."""

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op; of a cast, its operand."""
        return operands[0][0] if is_cast(node) else executor.call(node, operands)


_WITHOUT_CASTS = _WithoutCasts()


@dataclass(frozen=True)
class Formula:
    """Ops that compute one value from another one, and nothing else.

    Attributes:
        root: The value that they read.
        ops: The ops, in their order; nothing else reads any but the last one.
    """

    root: Node
    ops: tuple[Node, ...]

    def key(self) -> object:
        """Return a key that is equal for formulas of the same ops."""
        number = {node: place for place, node in enumerate((self.root, *self.ops))}

        def name(node: Node) -> Any:
            return ("value", number[node])

        def of(part: Any) -> Any:
            return repr(map_arg(part, name))

        return tuple((n.target, of(n.args), of(dict(n.kwargs))) for n in self.ops)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Run the ops on ``x``, in its dtype."""
        return evaluate(self.ops, {self.root: x}, _WITHOUT_CASTS)[self.ops[-1]]

    def record(self, made: Activation) -> Lowering:
        """Return the record of the formula as one op."""
        names = tuple(node.name for node in self.ops)
        return Lowering("activations", names, AS_ONE.format(made.name))


def _replace(graph: Graph, formula: Formula, root: Node, made: Activation) -> Node:
    """Replace the ops of a formula by one; return its result."""
    *inner, end = formula.ops
    result: torch.Tensor = end.meta["val"]
    source = root
    with graph.inserting_before(end):
        if dtype_of(source) != result.dtype and result.dtype not in _LOW:
            source = _cast(graph, source, result.dtype)
        last = graph.call_function(made.target, (source,), dict(made.kwargs))
        dtype = source.meta["val"].dtype
        last.meta = {**end.meta, "val": tensor_internals.retyped(result, dtype)}
        if dtype != result.dtype:
            last = _cast(graph, last, result.dtype)
    end.replace_all_uses_with(last)
    for node in reversed((*inner, end)):
        graph.erase_node(node)
    return last


def _cast(graph: Graph, node: Node, dtype: torch.dtype) -> Node:
    made = graph.call_function(aten.to.dtype, (node, dtype))
    value = tensor_internals.retyped(node.meta["val"], dtype)
    made.meta = {"val": value, "amprewrite": "cast"}
    return made


def _formulas(end: Node, places: Mapping[Node, int]) -> Iterator[Formula]:
    """Yield the formulas that end in an op, from small to large.

    Args:
        end: The op.
        places: Places of the nodes in the graph.
    """
    ops = {end}
    shape = _shape(end)
    while shape is not None and len(ops) <= MOST_OPS:
        below = {n for op in ops for n in op.all_input_nodes if n not in ops}
        root = max(below, key=places.__getitem__, default=None)
        if root is None:
            return
        if len(below) == 1 < len(ops) and _shape(root) == shape:
            order = sorted(ops, key=places.__getitem__)
            if any(dtype_of(node) in _LOW for node in (root, *order[:-1])):
                yield Formula(root, tuple(order))
        if not _may_be_inside(root, ops) or _shape(root) != shape:
            return
        ops.add(root)


def _may_be_inside(node: Node, ops: set[Node]) -> bool:
    """Return whether an op is one of a formula: read by its ops alone, and no pin."""
    if node.target not in _OPS or not ops.issuperset(node.users):
        return False
    if not is_cast(node):
        return node.target is not aten.to.dtype
    by_plan = node.meta.get("amprewrite") == "cast"
    return by_plan or node.meta.get(CHOSEN) == "follows" or dtype_of(node) in _WIDE


def _shape(node: Node) -> str | None:
    """Return the extents of a value of floats, also symbolic ones, as text."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return None
    return str(tuple(value.shape))


def _activation(formula: Formula) -> Activation | None:
    """Return the activation with the values of a formula; None if there is none."""
    grid = _GRID.double()
    try:
        found = formula(grid)
    except (RuntimeError, TypeError, ValueError):  # an op of another kind of argument
        return None
    for one in ACTIVATIONS:
        if torch.allclose(found, one(grid), rtol=_CLOSE, atol=_CLOSE):
            return one
    return None
