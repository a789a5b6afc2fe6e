"""Find convolutions of images in a graph that read them with the channels last."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.aten.arguments import argument
from amprewrite.frameworks.torch_fx.compat import operators, pytrees
from amprewrite.frameworks.torch_fx.lowering.channels_last import CONVOLUTIONS, LAST
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Window
from amprewrite.frameworks.torch_fx.lowering.packing.layer import OF_WEIGHTS, Layer
from amprewrite.frameworks.torch_fx.lowering.packing.layouts import OfWindow

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
"""Arguments of a convolution."""

_SPATIAL = 2
"""Number of dimensions of an image beside batch and channels."""


def convolutions(graph: Graph) -> Iterator[Layer]:
    """Yield the convolutions with an attribute or an input as weight.

    The kernels of packed weights give results with the channels last, so that those in
    another layout are left out.

    Args:
        graph: The graph, with values in the meta of its nodes.
    """
    for node in graph.nodes:
        if node.target not in CONVOLUTIONS or LAST not in node.meta:
            continue
        given: list[Any] = [argument(node, name) for name in _NAMES]
        operand, weight, bias, *place = given
        window = _window(weight, *place)
        known = [operand, weight, *([] if bias is None else [bias])]
        if window is None or not all(isinstance(n, Node) for n in known):
            continue
        if weight.op in OF_WEIGHTS:
            run = _run(node.target, place)
            yield Layer(node, operand, weight, bias, OfWindow(window), (), run)


def _window(
    weight: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Window | None:
    """Return the window of a convolution; None if its zeros are not symmetric."""
    value = weight.meta.get("val") if isinstance(weight, Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    steps, distances = _numbers(stride), _numbers(dilation)
    if padding == "valid":
        zeros = (0,) * _SPATIAL
    elif padding == "same":
        spans = zip(distances, value.shape[2:], strict=True)
        around = [far * (size - 1) for far, size in spans]
        if any(count % 2 for count in around):
            return None
        zeros = tuple(count // 2 for count in around)
    else:
        zeros = _numbers(padding)
    numbers = (*steps, *zeros, *distances, groups)
    is_known = all(type(number) is int for number in numbers)
    return Window(steps, zeros, distances, groups) if is_known else None


def _numbers(given: Any) -> tuple[Any, ...]:
    """Return a number for each dimension of an image."""
    numbers: tuple[Any, ...] = tuple(given) if pytrees.is_sequence(given) else (given,)
    return numbers * _SPATIAL if len(numbers) == 1 else numbers


def _run(target: Any, place: list[Any]) -> Callable[[Any, Any, Any], Any]:
    run = operators.builtin_of(target)
    return lambda x, weight, bias: run(x, weight, bias, *place)
