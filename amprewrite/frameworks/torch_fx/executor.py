"""Run a program of torch.fx node by node, for a consumer that looks into the run.

:class:`Executor` walks a graph and its bodies: it runs each node in one place, frees
each value after its last use, and replaces dtypes. An :class:`Observer` has the hooks
of a consumer, who sees and replaces the operands that an op reads and the results that
it computes. Programs of converted models do not run here but as generated code, see
:mod:`amprewrite.frameworks.torch_fx.lowering.flat_runner`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import named_tensors
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.compat.operators import (
    OpOverload,
    is_higher_order,
    is_mutable,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import positional, pytree
from amprewrite.frameworks.torch_fx.compat.shape_guards import GUARDS

Operands = tuple[Any, Any]
"""Positional and keyword operands of an op, with tensors at any depth."""

Dtypes = Mapping[torch.dtype, torch.dtype]
"""Dtypes of a run by the dtypes of the program."""


class Observer:
    """Consumer of a run; these hooks leave the run as it is."""

    def enters(self, executor: "Executor", node: Node) -> bool:
        """Return whether a body that runs once in place is run node by node."""
        del executor, node
        return True

    def on_read(self, executor: "Executor", node: Node, operand: Node) -> Any:
        """Return the value that ``node`` reads for ``operand``."""
        del node
        return executor.values[operand]

    def on_call(self, executor: "Executor", node: Node, operands: Operands) -> Any:
        """Return the result of the op of ``node``."""
        return executor.call(node, operands)

    def on_body(self, executor: "Executor", node: Node, inner: "Executor") -> Any:
        """Return the results of a body, which ``inner`` runs."""
        del executor, node
        with inner.mode():
            return inner.run()

    def on_result(self, executor: "Executor", node: Node, value: Any) -> Any:
        """Return the value that the users of ``node`` read."""
        del executor, node
        return value

    def also_reads(self, executor: "Executor", node: Node) -> Iterable[Node]:
        """Return values that a hook needs at ``node``, beside the operands."""
        del executor, node
        return ()


_PLAIN, _EMPTY = Observer(), Graph()


class _Values(dict[Node, Any]):
    """Values of nodes; attributes are loaded when they are read.

    Args:
        load: Returns the value of a node that reads an attribute.
    """

    def __init__(self, load: Callable[[Node], Any]) -> None:
        super().__init__()
        self._load = load

    def __missing__(self, node: Node) -> Any:
        if node.op != "get_attr":
            raise KeyError(node)
        return self.setdefault(node, self._load(node))


class Executor:
    """Execution of one graph, node by node.

    Parameters are read without autograd, and buffers are copied, because the program
    may write to them. The body of a region that runs once in place has an executor of
    its own; other higher-order ops (branches, loops) are called whole. Autocast regions
    are entered, but no regions without gradients: the consumer decides about those.

    Args:
        owner: The module with the attributes that the graph reads.
        graph: The graph.
        inputs: One value for each placeholder.
        observer: The consumer.
        dtypes: Replacements of dtypes, in attributes and in arguments; empty to run the
            program unchanged.

    Attributes:
        prefix: Prefix of the names of ops, in a body.
        mode: Returns the context in which a body runs.
        values: The values that are alive, by node.
        shadows: Second values of nodes, for the consumer; freed with the first ones.
    """

    def __init__(
        self,
        owner: object,
        graph: Graph,
        inputs: Iterable[Any] = (),
        observer: Observer = _PLAIN,
        *,
        dtypes: Dtypes | None = None,
    ) -> None:
        """Start before the first node."""
        self.owner, self.graph, self.observer = owner, graph, observer
        self.dtypes: Dtypes = dtypes or {}
        self.prefix = ""
        self.mode: Callable[[], AbstractContextManager[None]] = nullcontext
        self.values: dict[Node, Any] = _Values(self._attribute)
        self.shadows: dict[Node, Any] = {}
        self._inputs = iter(inputs)
        self._buffers: dict[int, torch.Tensor] = {}

    @cached_property
    def named(self) -> Mapping[str, Node]:
        """The nodes of the graph by name."""
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def _pending(self) -> Iterator[Node]:
        return iter(tuple(self.graph.nodes))

    @cached_property
    def _last_reads(self) -> Mapping[Node, list[Node]]:
        """The values that are not read after a node, by that node."""
        last: dict[Node, list[Node]] = defaultdict(list)
        seen: set[Node] = set()
        for node in reversed(self.graph.nodes):
            beside = self.observer.also_reads(self, node)
            for operand in (*node.all_input_nodes, *beside, node):
                if operand not in seen:
                    seen.add(operand)
                    last[node].append(operand)
        return last

    def run(self) -> Any:
        """Run all nodes and return the outputs."""
        self.run_nodes(self.graph.nodes)
        return self.outputs()

    def run_nodes(self, nodes: Iterable[Node]) -> None:
        """Run nodes in order, and free each value after its last use in the graph."""
        for node in nodes:
            if node.op != "output":
                self.step(node)
                self.release(node)

    def run_to(self, stop: Node | None) -> None:
        """Run the nodes before ``stop`` that earlier calls did not run."""
        for node in self._pending:
            if node is stop:
                return
            self.run_nodes((node,))

    def finish(self) -> Any:
        """Run the nodes that :meth:`run_to` did not run, and return the outputs."""
        self.run_to(None)
        return self.outputs()

    def step(self, node: Node) -> Any:
        """Run one node, store its value and return it."""
        match node.op:
            case "placeholder":
                value = next(self._inputs)
            case "get_attr":
                return None  # it is loaded, and converted, where it is read
            case "call_module" if node.target == GUARDS:
                value = None  # a test of the inputs of a call
            case _:
                if body_start(node) is not None and self.observer.enters(self, node):
                    value = self.observer.on_body(self, node, self.body(node))
                else:
                    value = self.observer.on_call(self, node, self.operands(node))
                value = self.observer.on_result(self, node, value)
        self.values[node] = value
        return value

    def operands(
        self, node: Node, read: Callable[[Node], Any] | None = None
    ) -> Operands:
        """Return the operands of a node, with dtypes replaced.

        Args:
            node: The node.
            read: Returns the value of an operand; the default is the observer's hook.
        """
        read = read or partial(self.observer.on_read, self, node)
        structure: Any = (tuple(node.args), dict(node.kwargs))
        return widened(torch.fx.map_arg(structure, read), self.dtypes)

    def call(self, node: Node, operands: Operands) -> Any:
        """Return the result of the op of ``node`` on operands, which may be others."""
        args, kwargs = operands
        target: Any = node.target
        if node.op == "call_method":
            target, args = getattr(args[0], target), args[1:]
        elif node.op == "call_module":
            target = attribute(self.owner, target)
        dtype = self.dtypes.get(torch.get_default_dtype())
        with default_dtype(dtype) if dtype else nullcontext():
            return target(*args, **kwargs)

    def body(self, node: Node, read: Callable[[Node], Any] | None = None) -> "Executor":
        """Return an executor of the body of ``node``, before its first node.

        Args:
            node: A node with a body that runs once in place.
            read: Returns the value of an operand; the default is the observer's hook.
        """
        args, _ = self.operands(node, read)
        module = args[ops.REGIONS[ops.region_name(node.target)][0]]
        inputs = args[body_start(node) :]
        inner = Executor(
            module, module.graph, inputs, self.observer, dtypes=self.dtypes
        )
        inner.prefix = f"{self.prefix}{node.name}."
        inner.mode = partial(_region_mode, node)
        return inner

    def outputs(self) -> Any:
        """Return the outputs, after all nodes were run."""
        args, _ = self.operands(self.graph.output_node())
        return args[0]

    def release(self, node: Node) -> None:
        """Drop the values with ``node`` as their last user."""
        for operand in self._last_reads.get(node, ()):
            self.values.pop(operand, None)
            self.shadows.pop(operand, None)

    def _attribute(self, node: Node) -> Any:
        value = attribute(self.owner, str(node.target))
        if not isinstance(value, torch.Tensor):
            return value
        source = value.detach()
        dtype = self.dtypes.get(source.dtype, source.dtype)
        if isinstance(value, nn.Parameter):
            return source.to(dtype)
        if id(value) not in self._buffers:  # one copy for all names of a buffer
            self._buffers[id(value)] = source.to(dtype, copy=True)
        return self._buffers[id(value)]


def evaluate(
    nodes: Iterable[Node],
    values: Mapping[Node, Any],
    observer: Observer = _PLAIN,
    owner: object = None,
) -> Mapping[Node, Any]:
    """Run nodes in order on the values of others, and return all values.

    Args:
        nodes: The nodes; operands before users.
        values: The values of the operands that are not among them.
        observer: The consumer.
        owner: The module with the attributes that the nodes read.
    """
    executor = Executor(owner, _EMPTY, observer=observer)
    executor.values.update(values)
    for node in nodes:
        executor.step(node)
    return executor.values


def constant_values(
    owner: object, graph: Graph, targets: Iterable[Node]
) -> Mapping[Node, Any]:
    """Return the values of nodes that depend on attributes and on no input.

    Args:
        owner: The module with the attributes of the graph.
        graph: The graph.
        targets: The nodes.

    Returns:
        Values of these nodes, and of those that they depend on.
    """
    needed = set(targets)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    nodes = [node for node in graph.nodes if node in needed]
    read = [node for node in nodes if node.op == "get_attr"]  # not copied
    values = {node: attribute(owner, str(node.target)) for node in read}
    with torch.inference_mode(mode=False), torch.no_grad():
        return evaluate(nodes, values)


def attribute(owner: object, path: str) -> Any:
    """Return the attribute of ``owner`` at a dotted path."""
    value = owner
    for part in path.split("."):
        value = getattr(value, part)
    return value


def structured(graph: Graph, outputs: Any) -> Any:
    """Return the outputs of a captured graph in the structure of its model."""
    structure = pytrees.call_structure(graph)
    if structure is None:
        return outputs
    return pytree.tree_unflatten(pytree.tree_leaves(outputs), structure.out_spec)


def named_outputs(graph: Graph, outputs: Any) -> dict[str, torch.Tensor]:
    """Return the outputs of a captured graph by their paths."""
    return dict(named_tensors(structured(graph, outputs)))


def body_start(node: Node) -> int | None:
    """Return the index of the first operand of a body that runs in place."""
    if not is_higher_order(node.target) or node.kwargs:
        return None
    name = node.target.name()
    if name not in ops.REGIONS:
        return None
    return ops.REGIONS[name][0] + 1 + (name in ops.IDENTIFIER_ARGUMENT)


@contextmanager
def _region_mode(node: Node) -> Generator[None]:
    """Enter the autocast region that ``node`` opens, if any."""
    if ops.region_name(node.target) != "wrap_with_autocast":
        yield
        return
    device, dtype, enabled, cache = positional(node)[:4]
    with torch.autocast(device, dtype, enabled=enabled, cache_enabled=cache):
        yield


def may_write(node: Node) -> bool:
    """Return whether the op of ``node`` may write to its operands."""
    target: Any = node.target
    return not isinstance(target, OpOverload) or is_mutable(cast("Any", target))


class Draws:
    """Random state of an op, to draw the same numbers at each run."""

    def __init__(self, node: Node) -> None:
        tags: Collection[Any] = getattr(node.target, "tags", ())
        self.random = torch.Tag.nondeterministic_seeded in tags
        if self.random:
            self.host = torch.get_rng_state()
            cuda = torch.cuda.is_initialized()
            self.devices = torch.cuda.get_rng_state_all() if cuda else []

    def rewind(self) -> None:
        """Restore the random generators."""
        if self.random:
            torch.set_rng_state(self.host)
            if self.devices:
                torch.cuda.set_rng_state_all(self.devices)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    """Set torch's default dtype in the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def widened(structure: Any, dtypes: Dtypes) -> Any:
    """Return ``structure`` with the dtypes in it replaced."""
    if not dtypes:
        return structure
    return pytree.tree_map(
        lambda leaf: dtypes.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf,
        structure,
    )


def widen_bodies(module: nn.Module, dtypes: Dtypes) -> None:
    """Replace dtypes in the arguments of the graphs below ``module``, in place."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if not str(node.target).endswith("view.dtype"):  # it reads bits
                    node.args = widened(node.args, dtypes)
                    node.kwargs = widened(node.kwargs, dtypes)
            part.recompile()
