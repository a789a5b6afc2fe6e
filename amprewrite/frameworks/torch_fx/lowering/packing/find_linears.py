"""Find linear layers in a graph: linear, addmm, mm and matmul with a weight."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.lowering.packing.layer import OF_WEIGHTS, Layer
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import OfMatrix

aten = torch.ops.aten

_RANK = 2
"""Number of dimensions of a weight."""


def linears(graph: Graph) -> Iterator[Layer]:
    """Yield the linear layers of a graph with an attribute or an input as weight.

    Args:
        graph: The graph, with values in the meta of its nodes.
    """
    for node in graph.nodes:
        parts = _parts(node)
        if parts is None:
            continue
        operand, matrix, bias, by_rows = parts
        weight, views = _attribute(matrix)
        known = [weight, operand, *([] if bias is None else [bias])]
        if weight is None or not all(isinstance(n, Node) for n in known):
            continue
        turned = bool(views)
        run = _RUN[node.target](turned)
        layout = OfMatrix(transposed=by_rows is turned)
        yield Layer(node, operand, weight, bias, layout, views, run)


def _parts(node: Node) -> tuple[Any, Any, Any, bool] | None:
    """Return operand, matrix and bias, and whether it is of outputs by inputs."""
    args: Any = node.args
    if node.target is aten.linear.default:
        bias = node.kwargs.get("bias", args[2] if args[2:] else None)
        return None if node.kwargs.keys() - {"bias"} else (*args[:2], bias, True)
    if node.kwargs:  # factors of the product and the sum
        return None
    if node.target is aten.addmm.default:
        return (args[1], args[2], args[0], False) if _rank(args[0]) == 1 else None
    if node.target in (aten.mm.default, aten.matmul.default):
        return (*args, None, False) if _rank(args[1]) == _RANK else None
    return None


def _attribute(matrix: Any) -> tuple[Node | None, tuple[Node, ...]]:
    """Return the weight that a matrix is, or the transpose of, with that node."""
    if not isinstance(matrix, Node):
        return None, ()
    if matrix.op in OF_WEIGHTS:
        return matrix, ()
    is_turn = matrix.target in (aten.t.default, aten.numpy_T.default) or (
        matrix.target is aten.transpose.int
        and {int(d) % _RANK for d in matrix.args[1:] if isinstance(d, int)} == {0, 1}
    )
    source = matrix.args[0] if is_turn and not matrix.kwargs else None
    if not isinstance(source, Node) or source.op not in OF_WEIGHTS:
        return None, ()
    return (source, (matrix,)) if _rank(source) == _RANK else (None, ())


def _rank(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _linear(turned: bool) -> Callable[[Any, Any, Any], Any]:  # noqa: FBT001  # of a table
    run = operators.builtin_of(aten.linear.default)
    if turned:
        return lambda x, weight, bias: run(x, weight.t(), bias)
    return run


def _addmm(turned: bool) -> Callable[[Any, Any, Any], Any]:  # noqa: FBT001  # of a table
    run = operators.builtin_of(aten.addmm.default)
    if turned:
        return lambda x, weight, bias: run(bias, x, weight.t())
    return lambda x, weight, bias: run(bias, x, weight)


def _product(op: Any) -> Callable[[bool], Callable[[Any, Any, Any], Any]]:
    run = operators.builtin_of(op)

    def made(turned: bool) -> Callable[[Any, Any, Any], Any]:  # noqa: FBT001  # of a table
        if turned:
            return lambda x, weight, _: run(x, weight.t())
        return lambda x, weight, _: run(x, weight)

    return made


_RUN: dict[Any, Callable[[bool], Callable[[Any, Any, Any], Any]]] = {
    aten.linear.default: _linear,
    aten.addmm.default: _addmm,
    aten.mm.default: _product(aten.mm.default),
    aten.matmul.default: _product(aten.matmul.default),
}
"""For each op a function that makes the layer, of a weight that is turned or not."""
