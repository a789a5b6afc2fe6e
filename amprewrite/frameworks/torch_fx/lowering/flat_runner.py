"""Flat runners: a graph as one Python function without attribute chains.

``GraphModule.forward`` reads each weight by a chain of module attributes (3.5 us a
weight, measured) and calls each op through Python. A flat runner reads weights from the
dicts in which the modules hold them, so that whatever replaces one there is seen, and
calls the function below the Python of an op. It computes the same bits.
"""

import linecache
import math
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from operator import getitem
from typing import Any, cast

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    operators,
    pytrees,
    tensor_internals,
    tracing,
)
from amprewrite.frameworks.torch_fx.lowering.simplify import FOLDED

_LITERALS = (bool, int, str, type(None), type(Ellipsis))
"""Types of constants that Python code can spell."""

_numbers = count(1)


def flat_runner(
    owner: nn.Module, graph: Graph, outside: Any = None
) -> Callable[..., Any]:
    """Return the function of a graph, of its flat inputs.

    Args:
        owner: The module with the tensors and bodies of the graph.
        graph: The graph.
        outside: Structure of the output, from the graph; None to return the operand
            of the output node.

    Returns:
        A function of as many positional arguments as the graph has placeholders.
    """
    return _Writer(owner, outside).function(graph)


def call_runner(
    owner: nn.Module, graph: Graph, inside: Any, outside: Any
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return the function of an exported graph, of the arguments of a call.

    Args:
        owner: The module with the tensors and bodies of the graph.
        graph: The graph.
        inside: Structure of the arguments: a pair of a tuple and a dict.
        outside: Structure of the output.
    """
    run = flat_runner(owner, graph, outside)
    leaves = (part.is_leaf() for side in inside.children() for part in side.children())
    if all(leaves):
        return lambda args, kwargs: run(*args, *kwargs.values())
    flatten = pytrees.flatten_by
    return lambda args, kwargs: run(*flatten((list(args), kwargs), inside))


def without_gradients(
    first: Callable[..., Any], other: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that calls ``first`` where nothing asks for derivatives.

    ``first`` is called only if gradients are off, no transform of ``torch.func`` is
    active, and no forward-mode derivative is computed, which ``no_grad`` does not end.
    """

    def run(*given: Any) -> Any:
        derives = torch.is_grad_enabled() or operators.in_transform()
        if derives or operators.in_forward_derivatives():
            return other(*given)
        return first(*given)

    return run


class _Writer:
    """Writer of one function as Python source.

    Attributes:
        owner: The module with the tensors and bodies of the graph.
        outside: Structure of the output; None if there is none.
        names: Objects that the source refers to, by name.
    """

    def __init__(self, owner: nn.Module, outside: Any) -> None:
        self.owner, self.outside = owner, outside
        self.names: dict[str, object] = {}
        self._known: dict[int, str] = {}

    def function(self, graph: Graph) -> Callable[..., Any]:
        """Return the function of a graph."""
        last = _last_uses(graph)
        inputs = [_local(n) for n in graph.nodes if n.op == "placeholder"]
        lines = [f"def run({', '.join(inputs)}):"]
        for node in graph.nodes:
            if line := self._line(node):
                unused = [_local(n) for n in last.get(node, ()) if n.op != "get_attr"]
                drop = f"; {' = '.join(unused)} = None" if unused else ""
                lines.append(f"  {line}{drop}")
        lines += ["return run"]
        body = "\n ".join(lines)
        source = f"def make({', '.join(self.names)}):\n {body}\n"
        where = f"<amprewrite program {next(_numbers)}>"
        # Errors show the line of the program, as in a GraphModule.
        linecache.cache[where] = (len(source), None, source.splitlines(True), where)
        made: dict[str, Any] = {}
        exec(compile(source, where, "exec"), made)  # noqa: S102  # of a graph of ops
        return made["make"](*self.names.values())

    def _line(self, node: Node) -> str:
        if node.op == "output":
            return f"return {self._output(node.args[0])}"
        if node.op in ("placeholder", "get_attr"):
            return ""
        call = self._call(node)
        return f"{_local(node)} = {call}" if node.users else call

    def _call(self, node: Node) -> str:
        if node.op == "call_function" and node.target is getitem:
            value, key = map(self._value, node.args)
            return f"{value}[{key}]"
        given = [self._value(arg) for arg in node.args]
        named = [f"{name}={self._value(arg)}" for name, arg in node.kwargs.items()]
        if node.op == "call_method":
            return f"{given[0]}.{node.target}({', '.join(given[1:] + named)})"
        if node.op == "call_module":
            function: Any = self.owner.get_submodule(str(node.target))
        else:
            function = binding_of(node)
        return f"{self._name('f', function)}({', '.join(given + named)})"

    def _output(self, value: Any) -> str:
        """Return the text of the output in the structure of the model."""
        if self.outside is None:
            return self._value(value)
        parts = cast("tuple[Any, ...]", value)
        if self.outside.is_leaf():
            return self._value(parts[0])
        if self.outside.type is tuple and all(
            part.is_leaf() for part in self.outside.children()
        ):
            return self._value(tuple(parts))
        build = self._name("f", pytrees.pytree.tree_unflatten)
        return f"{build}({self._value(list(parts))}, {self._name('k', self.outside)})"

    def _value(self, value: Any) -> str:
        """Return the text of an argument of a node."""
        if isinstance(value, Node):
            return self._tensor(value) if value.op == "get_attr" else _local(value)
        if isinstance(value, slice):
            cut = cast("slice[Any, Any, Any]", value)
            bounds = map(self._value, (cut.start, cut.stop, cut.step))
            return f"slice({', '.join(bounds)})"
        if isinstance(value, (tuple, list, dict)):
            return self._container(cast("Any", value))
        finite = type(value) is float and math.isfinite(value)
        is_literal = finite or type(value) in _LITERALS
        return repr(value) if is_literal else self._name("k", value)

    def _container(self, value: Any) -> str:
        if isinstance(value, dict):
            items = cast("Mapping[Any, Any]", value).items()
            pairs = (f"{self._value(k)}: {self._value(v)}" for k, v in items)
            return f"{{{', '.join(pairs)}}}"
        texts = ", ".join(map(self._value, value))
        if isinstance(value, list):
            return f"[{texts}]"
        return f"({texts},)" if texts else "()"

    def _tensor(self, node: Node) -> str:
        """Return the text that reads an attribute of the owner."""
        if FOLDED in node.meta:
            return self._name("k", node.meta[FOLDED])
        path, _, name = str(node.target).rpartition(".")
        holder = self.owner.get_submodule(path)
        for held in (
            module_parts.parameters(holder),
            module_parts.buffers(holder),
            module_parts.attributes_of(holder),
        ):
            if name in held:
                return f"{self._name('d', held)}[{name!r}]"
        return self._name("k", getattr(holder, name))  # a body: no one replaces it

    def _name(self, kind: str, value: object) -> str:
        """Return the name of an object that the source refers to."""
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"{kind}{len(self.names)}"
            self.names[name] = value
        return name


def _local(node: Node) -> str:
    return f"v_{node.name}"


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """Return the values that no later node reads, by the node that reads them last."""
    seen: set[Node] = set()
    found: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            seen.update(node.all_input_nodes)
            continue
        for value in node.all_input_nodes:
            if value not in seen:
                seen.add(value)
                found.setdefault(node, []).append(value)
    return found


# Cheapest Python callables of ATen ops.
#
# An op called as ``torch.ops.aten.view.default`` parses its arguments by its schema;
# the bindings of Python (``Tensor.view``, ``torch.add``) have parsers of their own,
# which take less: 1.2 us for 2.9 of an add, 2.3 for 8.1 of a layer norm (measured).
# Which overload a binding takes depends on the types of its arguments alone, so that it
# is compared once for each combination: both have to dispatch the same kernels.

_bindings: dict[Hashable, Callable[..., Any]] = {}
"""Callables by op and types of arguments."""


def binding_of(node: Node) -> Callable[..., Any]:
    """Return the callable of a node: its op, or a binding of the same kernels.

    Args:
        node: A ``call_function`` node, with values in its meta.
    """
    target: Any = node.target
    if not operators.is_overload(target):
        return target
    builtin = operators.builtin_of(target)
    if not operators.is_pure(target) or not node.all_input_nodes:
        return builtin  # to be run by nobody but the user: it draws, or allocates
    try:
        args, kwargs = pytrees.pytree.tree_map(_example, (node.args, dict(node.kwargs)))
    except _NoValueError:
        return builtin
    leaves, structure = pytrees.pytree.tree_flatten((args, kwargs))
    key = (target, str(structure), *map(type, leaves))
    if key not in _bindings:
        kernels = tracing.dispatched(builtin, args, kwargs)
        candidates = operators.python_bindings(target) if kernels is not None else ()
        same = (
            binding
            for binding in candidates
            if tracing.dispatched(binding, args, kwargs) == kernels
        )
        _bindings[key] = next(same, builtin)
    return _bindings[key]


class _NoValueError(LookupError):
    """A node has no value that stands for all of its calls."""


def _example(value: Any) -> Any:
    """Return a tensor without values in place of a node; other parts as they are.

    Raises:
        _NoValueError: The value of a node is not known, or is not a dense tensor.
    """
    if isinstance(value, Node):
        if "val" not in value.meta:
            raise _NoValueError
        return pytrees.pytree.tree_map(_example, value.meta["val"])
    if isinstance(value, torch.Tensor):
        if not tensor_internals.is_dense(value):
            raise _NoValueError
        return tensor_internals.stand_in(value, "meta")
    return tensor_internals.example_of(value)
