"""Memory that ops write to, copied before the first write.

Ops are seen below autograd, so that writes through ``data``, ``detach()`` and without
gradients are seen too. A large model is not copied: only what is written to is.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch.fx import GraphModule

from amprewrite.frameworks.torch_fx.compat import (
    operators,
    pytrees,
    settings,
    tensor_internals,
    threads,
)


class FirstWrites(operators.Transparent):
    """Mode that copies memory before an op inside first writes to it.

    Memory that ops inside make is not copied. Arrays of NumPy that share the memory of
    a tensor may be written to, so that it is copied when one is made.

    Attributes:
        written: Memory that was written to, by identity, each with its copy.
        known: Memory that was written to and put back.
    """

    def __init__(self) -> None:
        """Begin without a copy."""
        above: Any = super()
        above.__init__()
        self.written: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.known: list[torch.UntypedStorage] = []
        self._others: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._own: set[int] = set()
        self._outdated: list[Callable[[], object]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Copy the memory that ``func`` writes to, and run it."""
        del types
        kwargs = kwargs or {}
        self.note_op(func, args, kwargs)
        result = func(*args, **kwargs)
        if _effects_of(func).makes:
            self._note_own(result, args)
        return result

    def note_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy the memory that an op is about to write to."""
        for operand in _effects_of(func).written(args, kwargs):
            self.note(operand)

    def note(self, tensor: torch.Tensor) -> None:
        """Copy the memory of a tensor, unless that was done, or it was made inside."""
        for inner in operators.inner_tensors(tensor):
            if tensor_internals.has_no_values(inner):
                continue
            try:
                memory = inner.untyped_storage()
                identity = tensor_internals.storage_identity(inner)
            except (NotImplementedError, RuntimeError):  # of a sparse tensor
                self._note_other(inner)
                continue
            if identity not in self.written and identity not in self._own:
                self.copy(memory)

    def copy(self, memory: torch.UntypedStorage) -> None:
        """Copy memory that is about to be written to."""
        with operators.without_modes():
            identity = tensor_internals.memory_identity(memory)
            self.written[identity] = memory, memory.clone()

    def _note_other(self, tensor: torch.Tensor) -> None:
        if not any(tensor is noted for noted, _ in self._others):
            with operators.without_modes(), torch.no_grad():
                self._others.append((tensor, tensor.detach().clone()))

    def _note_own(self, result: Any, args: tuple[Any, ...]) -> None:
        """Take note of the memory of results, if it is not that of an operand."""
        if isinstance(result, (tuple, list)):
            for part in cast("list[Any]", result):
                self._note_own(part, args)
        elif (identity := _memory(result)) and identity not in map(_memory, args):
            self._own.add(identity)

    def has_written(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of a tensor was, or may be, written to."""
        if any(tensor is noted for noted, _ in self._others):
            return True
        return any(
            _memory(inner) in self.written for inner in operators.inner_tensors(tensor)
        )

    def put_back(self) -> None:
        """Write the copies back, and drop them."""
        with operators.without_modes(), torch.no_grad():
            while self.written:
                memory, copy = self.written[next(reversed(self.written))]
                if memory.nbytes() != copy.nbytes():
                    memory.resize_(copy.nbytes())
                memory.copy_(copy)
                self.known.append(memory)
                self.written.popitem()
            while self._others:
                tensor, content = self._others[-1]
                tensor.data = content
                self._others.pop()
        while self._outdated:
            self._outdated.pop()()

    def outdates(self, forget: Callable[[], object]) -> None:
        """Call a function when the copies are written back.

        Args:
            forget: Function that marks values as outdated, which were computed inside
                from memory that may have been written to.
        """
        self._outdated.append(forget)

    @contextmanager
    def watching(self, *, traced: bool = False) -> Generator[None]:
        """See the ops in the context, and the arrays that are made there.

        Args:
            traced: Whether the ops are traced. They are then seen where the tracer
                sees them: a mode below it would take 5 % of a conversion (measured).
        """
        as_array: Any = torch.Tensor.numpy

        def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.note(tensor)
            return as_array(tensor, *args, **kwargs)

        ops = settings.noting_ops(self.note_op) if traced else self
        with threads.replaced(torch.Tensor, "numpy", noted), ops:
            yield


def outdated_by_put_back(forget: Callable[[], object]) -> None:
    """Have a function called when writes around the caller are taken back.

    Args:
        forget: As :meth:`FirstWrites.outdates` takes it.
    """
    for mode in operators.dispatch_modes():
        if isinstance(mode, FirstWrites):
            mode.outdates(forget)


def writes_in_place(program: GraphModule) -> bool:
    """Return whether an op of a captured program may write to its operands."""
    graphs = (part.graph for part in program.modules() if isinstance(part, GraphModule))
    targets = (node.target for graph in graphs for node in graph.nodes)
    called: Any = {target for target in targets if operators.is_overload(target)}
    effects = map(_effects_of, called)
    return any(effect.positions or effect.names for effect in effects)


def _memory(value: Any) -> int:
    """Return the identity of the memory of a strided tensor; 0 of anything else."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    return tensor_internals.storage_identity(value)


class _Effects(NamedTuple):
    """The effects of an operator on memory.

    Attributes:
        positions: Positions of the operands that it writes to; None if unknown.
        names: Names of keyword operands that it writes to.
        makes: Whether it makes results in memory of their own.
    """

    positions: tuple[int, ...] | None
    names: tuple[str, ...]
    makes: bool

    def written(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[torch.Tensor]:
        """Yield the tensors that a call may write to."""
        if self.positions is None:
            operands: Any = (args, kwargs)
        elif not self.positions and not self.names:
            return
        else:
            operands = [args[n] for n in self.positions if n < len(args)]
            operands += [kwargs[name] for name in self.names if name in kwargs]
        for leaf in pytrees.pytree.tree_leaves(operands):
            if isinstance(leaf, torch.Tensor):
                yield leaf


_STATISTICS = "running_"
"""Beginning of the names of statistics, which batch norms update without saying so.

Source: ``native_batch_norm``, ``cudnn_batch_norm`` in native_functions.yaml (torch
2.13).
"""


@cache
def _effects_of(func: Any) -> _Effects:
    """Return the effects of an operator by its schema.

    One of higher order has none: it may write to each operand.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _Effects(None, (), makes=False)
    written = [
        (n, arg.name)
        for n, arg in enumerate(schema.arguments)
        if (arg.alias_info is not None and arg.alias_info.is_write)
        or arg.name.startswith(_STATISTICS)
    ]
    makes = all(result.alias_info is None for result in schema.returns)
    positions = tuple(n for n, _ in written)
    return _Effects(positions, tuple(name for _, name in written), makes)
