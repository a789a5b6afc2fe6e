"""Give tensors that a forward stored in a trace the values that they stand for.

A forward may store what it computes outside of the model: in a function with
``functools.lru_cache``, in a dict of a class, in an object. In a trace that is a tensor
without values, and each later call, of the model itself too, would return such tensors.
"""

import gc
import traceback
import weakref
from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any, cast
from weakref import WeakSet

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from amprewrite.frameworks.torch_fx.compat import (
    operators,
    tensor_internals,
    tracing,
)


class MadeTensors(torch.overrides.TorchFunctionMode):
    """Mode that knows the tensors that code makes in it, as long as they live."""

    def __init__(self) -> None:
        """Know none."""
        super().__init__()
        self._made: list[weakref.ref[torch.Tensor]] = []
        self._tracer: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run ``func`` and take note of the tensors in its result.

        An op in place returns an argument, which it did not make.
        """
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not _may_contain_tensors(result):  # most are attributes of tensors
            return result
        if not any(result is arg for arg in (*args, *kwargs.values())):
            self._note(result)
        if self._tracer is None:
            self._tracer = tracing.tracer_in_use()
        return result

    def _note(self, result: Any, depth: int = 2) -> None:
        if isinstance(result, torch.Tensor):
            self._made.append(weakref.ref(result))
        elif depth and isinstance(result, (tuple, list)):
            for part in cast("Sequence[Any]", result):
                self._note(part, depth - 1)

    def settle(self, program: object = None) -> int:
        """Give the tensors that are alive their values; return how many have none.

        They are computed as the trace has them, from constants alone. What depends on
        the arguments or the weights, or is drawn, has none.

        Args:
            program: The module that was made of the trace, with its constants; None if
                none was made.
        """
        tracer = self._tracer
        if not self._traced():
            return 0
        gc.collect()  # garbage in cycles is alive until now
        stored = self._traced()
        if not stored:
            return 0
        nodes = [tracing.node_of(tracer, tensor) for tensor in stored]
        values = constants(tracer.graph, program)
        self._tracer = tracer = None  # it refers to them, in C++ too
        gc.collect()
        pairs = zip(stored, nodes, strict=True)
        lost = WeakSet(
            t for t, n in pairs if n is None or not _become(t, values.get(n))
        )
        del stored, pairs, nodes
        return len(tracing.leaks(lost))

    def _traced(self) -> list[torch.Tensor]:
        """Return the tensors that were made in the trace, and are alive.

        Arguments are none: torch holds them with the symbols of their extents.
        """
        fakes = filter(tensor_internals.is_fake, self._alive())
        nodes = ((t, tracing.node_of(self._tracer, t)) for t in fakes)
        return [t for t, n in nodes if n is not None and n.op != "placeholder"]

    def _alive(self) -> list[torch.Tensor]:
        found = {id(t): t for made in self._made if (t := made()) is not None}
        return [t for t in found.values() if tensor_internals.has_no_values(t)]


def _may_contain_tensors(result: object) -> bool:
    types = (torch.Tensor, tuple, list)
    return isinstance(result, types) and not isinstance(result, torch.Size)


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
