"""Give tensors that a forward stored in a trace the values that they stand for.

A forward may store what it computes outside of the model: in a function with
``functools.lru_cache``, in a dict of a class, in an object. In a trace that is a tensor
without values, and each later call, of the model itself too, would return such tensors.
"""

import gc
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import chain
from operator import getitem
from typing import Any
from weakref import WeakSet

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from amprewrite.frameworks.torch_fx.compat import (
    operators,
    tensor_internals,
    tracing,
)


class StoredTensors:
    """The tensors that code stores in a trace, so that they are alive after it."""

    def __init__(self) -> None:
        """Know no trace."""
        self._tracers: list[Any] = []

    def watching(self) -> AbstractContextManager[None]:
        """Take note of the traces that begin in the context."""
        return tracing.noting_tracers(self._tracers.append)

    def settle(self, program: object = None) -> int:
        """Give the tensors that are alive their values; return how many have none.

        They are computed as the trace has them, from constants alone. What depends on
        the arguments or the weights, or is drawn, has none.

        Args:
            program: The module that was made of the trace, with its constants; None if
                none was made.
        """
        if not self._alive():
            return 0
        gc.collect()  # garbage in cycles is alive until now
        stored = self._alive()
        if not stored:
            return 0
        values = dict[Node, torch.Tensor]()
        while self._tracers:
            values |= constants(self._tracers.pop().graph, program)
        gc.collect()  # the traces refer to the tensors, in C++ too
        lost = WeakSet(t for t, node in stored if not _become(t, values.get(node)))
        del stored
        return len(tracing.leaks(lost))

    def _alive(self) -> list[tuple[torch.Tensor, Node]]:
        """Return the tensors without values that are alive, with their nodes.

        Arguments are left out: torch holds them with the symbols of their extents. A
        tensor with values is the user's, which the forward writes to.
        """
        tracked = chain.from_iterable(map(tracing.tensors_of, self._tracers))
        alive = {
            id(tensor): (tensor, node)
            for tensor, node in tracked
            if node.op != "placeholder" and tensor_internals.is_fake(tensor)
        }
        return [*alive.values()]  # a trace may begin again, with its tensors


def release(error: BaseException | None) -> None:
    """Clear the variables of the calls that an error left, which hold tensors."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def constants(graph: Graph, program: object) -> Mapping[Node, torch.Tensor]:
    """Return the values of the nodes of a trace that depend on constants alone.

    They are computed in the order of the trace, with ops in place; extents are those of
    the example. None are returned if an op writes to one of them what is no constant.

    Args:
        graph: The graph of the trace.
        program: The module with its constants, which are inputs of the graph.
    """
    values: dict[Node, Any] = {}
    plain = {} if program is None else vars(program)  # apart from weights and buffers
    with torch.inference_mode(mode=False), torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                held = plain.get(str(node.target).removeprefix(_CONSTANT))
                if node.name.startswith(_CONSTANT) and tensor_internals.has_values(
                    held
                ):
                    values[node] = held.clone()
            elif (number := tracing.number_of(node)) is not None:
                values[node] = number  # an extent of an argument
            elif node.op == "call_function" and not _computed(node, values):
                target: Any = node.target
                writes = operators.is_overload(target) and operators.is_mutable(target)
                if writes and not values.keys().isdisjoint(node.all_input_nodes):
                    return {}
    return {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}


_CONSTANT = "c_"
"""Beginning of the names of constants (torch.export.graph_signature)."""


def _computed(node: Node, values: dict[Node, Any]) -> bool:
    """Compute a node from the values of its operands, if it has all of them."""
    target: Any = node.target
    if target is not getitem and not operators.is_overload(target):
        return False
    if target is not getitem and operators.is_random(target):
        return False
    if not values.keys() >= set(node.all_input_nodes):
        return False
    given: Any = map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = given
    values[node] = target(*args, **kwargs)
    return True


def _become(tensor: torch.Tensor, value: torch.Tensor | None) -> bool:
    """Give a tensor the content of another; return whether that could be done."""
    if value is None:
        return False
    try:
        tensor_internals.take_content(tensor, value.detach())
    except RuntimeError:  # something in C++ refers to it
        return False
    return True
