"""Compute regions of a graph again in the backward pass, in place of keeping tensors.

The program runs under hooks on the tensors that autograd saves. One that belongs to a
region of the plan is replaced by a recipe: the roots of the region, and the nodes that
lead from them to the tensor. The derivatives are autograd's own, of the same operands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import local
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from amprewrite.frameworks.torch_fx.compat import compiling, settings
from amprewrite.frameworks.torch_fx.compat.tensor_internals import storage_key, writes
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    Observer,
    Operands,
    evaluate,
)
from amprewrite.frameworks.torch_fx.lowering.flat_runner import (
    binding_of,
    call_runner,
    without_gradients,
)
from amprewrite.frameworks.torch_fx.lowering.lower_graph import Lowered
from amprewrite.frameworks.torch_fx.lowering.simplify import copied, dtype_of
from amprewrite.plan.fields import Recompute

aten = torch.ops.aten

MODIFIED = (
    "a tensor that the backward pass needs was changed in place after the forward "
    "pass: found version {found}, want {want}; take the gradients before it is "
    "changed, or convert without recompute=True"
)
"""Message for a root that was written to; autograd refuses it the same way."""


@dataclass(frozen=True)
class Recipe:
    """The way from roots to the value of one node.

    Attributes:
        node: The node.
        roots: Nodes whose values are given.
        steps: Nodes to run, in order, each with its function.
    """

    node: Node
    roots: tuple[Node, ...]
    steps: Mapping[Node, Callable[..., Any]]

    def value(self, roots: Mapping[Node, Any]) -> torch.Tensor:
        """Return the value of the node, from those of its roots."""
        with torch.no_grad(), settings.without_any_autocast():
            return evaluate(self.steps, roots, _Bound(self.steps))[self.node]


@dataclass(frozen=True)
class _Bound(Observer):
    """Observer that calls the binding of each op.

    Attributes:
        bindings: Function of each node.
    """

    bindings: Mapping[Node, Callable[..., Any]]

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op."""
        del executor
        args, kwargs = operands
        return self.bindings[node](*args, **kwargs)


@dataclass
class _Again:
    """The value of a node of a region, in one run of the program.

    Attributes:
        recipe: The way to it.
        strides: Its strides.
        roots: The roots, each with its version; empty until somebody saves it.
        waiting: Number of saved tensors that it stands for, less those read.
        value: The value, while others wait for it; None before and after.
    """

    recipe: Recipe
    strides: tuple[int, ...]
    roots: dict[Node, tuple[torch.Tensor, int]] = field(
        default_factory=dict[Node, "tuple[torch.Tensor, int]"]
    )
    waiting: int = 0
    value: torch.Tensor | None = None

    def read(self) -> torch.Tensor:
        """Return the value, computed again unless a reader before has done so.

        Raises:
            RuntimeError: A root was changed in place, or the layout is another one.
        """
        value = self.value
        if value is None:
            for root, version in self.roots.values():
                _check_version(root, version)
            value = self.recipe.value({n: root for n, (root, _) in self.roots.items()})
            if value.stride() != self.strides:
                msg = (
                    f"{self.recipe.node.name} was computed again in another layout: "
                    f"found strides {value.stride()}, want {self.strides}; convert "
                    f"without recompute=True"
                )
                raise RuntimeError(msg)
        self.waiting -= 1
        self.value = value if self.waiting > 0 else None
        return value


@dataclass
class _Held:
    """A saved tensor, or its place in a value to compute again.

    Attributes:
        tensor: The tensor; None once it is to be computed again.
        version: Its version when it was saved.
        again: The value in whose storage the tensor lies; None for one that is kept.
        layout: Shape, strides and offset of the tensor in that storage.
    """

    tensor: torch.Tensor | None
    version: int
    again: _Again | None = None
    layout: tuple[Any, Any, Any] = ((), (), 0)


class Tape:
    """The values of one run of a program that regions begin with, or make."""

    def __init__(self, recipes: Mapping[Node, Recipe]) -> None:
        """Note nothing yet."""
        self.recipes = recipes
        self.values: dict[Node, tuple[torch.Tensor, int]] = {}
        self.owners: dict[Any, _Again | None] = {}
        self.fresh: list[_Held] = []

    def note(self, node: Node, value: Any) -> None:
        """Take note of the value of a root or of a node of a region."""
        fresh, self.fresh = self.fresh, []
        if not isinstance(value, torch.Tensor):
            return
        recipe = self.recipes.get(node)
        if recipe is None:
            self.values[node] = value.detach(), writes(value)
        key = storage_key(value)
        if key in self.owners:
            return
        self.owners[key] = recipe and _Again(recipe, value.stride())
        for held in fresh:
            if held.tensor is not None and storage_key(held.tensor) == key:
                self._replace(held)

    def pack(self, tensor: torch.Tensor) -> _Held:
        """Return the stand-in for a tensor that autograd saves."""
        held = _Held(tensor, writes(tensor))
        self.fresh.append(held)
        self._replace(held)
        return held

    def _replace(self, held: _Held) -> None:
        """Put a recipe in place of a tensor, if it belongs to a region."""
        tensor = held.tensor
        assert tensor is not None
        again = self.owners.get(storage_key(tensor))
        if again is None or held.version or tensor.dtype != dtype_of(again.recipe.node):
            return
        if not all(root in self.values for root in again.recipe.roots):
            return
        again.roots = {root: self.values[root] for root in again.recipe.roots}
        again.waiting += 1
        held.layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        held.again, held.tensor = again, None


def unpack(held: _Held) -> torch.Tensor:
    """Return a saved tensor; computed again, if it was not kept.

    Raises:
        RuntimeError: It, or a root, was changed in place.
    """
    if held.again is None:
        assert held.tensor is not None
        _check_version(held.tensor, held.version)
        return held.tensor
    return torch.as_strided(held.again.read(), *held.layout)


def _check_version(tensor: torch.Tensor, version: int) -> None:
    found = writes(tensor)
    if found != version:
        raise RuntimeError(MODIFIED.format(found=found, want=version))


class _Running(local):
    tape: Tape | None = None


_running = _Running()


def _note(node: "Box", value: Any) -> None:
    """Take note of a value in the tape of this run, if it has one."""
    if _running.tape is not None:
        _running.tape.note(node.node, value)


@dataclass(frozen=True, eq=False)
class Box:
    """A node as a constant of the program, not as an argument to compute."""

    node: Node


def recipes_of(graph: Graph, found: Recompute) -> dict[Node, Recipe]:
    """Return the recipe of every node of a region, and of every cast beside one.

    Args:
        graph: The graph, with values in the meta of its nodes.
        found: The regions of its plan.
    """
    kept = {(k.value, k.dtype) for k in found.kept if k.bytes}
    again: dict[Node, Recipe] = {}
    ops = found.ops
    for node in graph.nodes:
        if node.op != "call_function" or not _is_again(node, ops, kept):
            continue
        roots: dict[Node, None] = {}
        steps: dict[Node, Callable[..., Any]] = {}
        for source in node.all_input_nodes:
            below = again.get(source)
            roots.update(dict.fromkeys(below.roots if below else (source,)))
            steps.update(below.steps if below else ())
        steps[node] = binding_of(node)
        again[node] = Recipe(node, tuple(roots), steps)
    return again


def _is_again(node: Node, ops: frozenset[str], kept: set[tuple[str, str]]) -> bool:
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.name in ops:
        return True
    if node.meta.get("amprewrite") != "cast" or node.target is not aten.to.dtype:
        return False
    source: Any = node.args[0]
    return (source.name, str(dtype_of(node)).removeprefix("torch.")) not in kept


def noting(graph: Graph, recipes: Mapping[Node, Recipe]) -> None:
    """Insert nodes that note the values of regions and of their roots.

    Args:
        graph: The graph; it is changed in place.
        recipes: Those of its nodes.
    """
    roots = {root for recipe in recipes.values() for root in recipe.roots}
    for node in list(graph.nodes):
        if node not in roots and node not in recipes:
            continue
        place = node.next
        while place.op == "placeholder":
            place = place.next
        with graph.inserting_before(place):
            arguments: Any = Box(node), node
            graph.call_function(_note, arguments)


def recording(
    run: Callable[..., Any], recipes: Mapping[Node, Recipe]
) -> Callable[..., Any]:
    """Return a program that keeps recipes in place of tensors, where it has gradients.

    Args:
        run: Runs the noting graph.
        recipes: Those of its nodes.
    """

    def recorded(*given: Any) -> Any:
        if not torch.is_grad_enabled() or compiling.inside_transform():
            return run(*given)
        before, tape = _running.tape, Tape(recipes)
        _running.tape = tape
        try:
            with torch.autograd.graph.saved_tensors_hooks(tape.pack, unpack):
                return run(*given)
        finally:
            _running.tape = before

    return recorded


def lowered_runner(
    owner: nn.Module, lowered: Lowered, inside: Any, outside: Any, found: Recompute
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return the function of a lowered graph; the packed one runs without gradients.

    Args:
        owner: The module with the tensors and bodies of the graph.
        lowered: The graph, with values in the meta of its nodes; it stays as it is.
        inside: Structure of the arguments.
        outside: Structure of the output.
        found: The regions of its plan; empty for none.
    """

    def runner(graph: Graph) -> Callable[..., Any]:
        return call_runner(owner, graph, inside, outside)

    run = recomputing(lowered.graph, found, runner)
    if lowered.packed is None:
        return run
    return without_gradients(recomputing(lowered.packed, found, runner), run)


def recomputing(
    graph: Graph, found: Recompute, make: Callable[[Graph], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return the function of a graph, which computes regions again.

    Args:
        graph: The graph, with values in the meta of its nodes; it stays as it is.
        found: The regions of its plan; empty for none.
        make: Returns the function of a graph.
    """
    if not found:
        return make(graph)
    copy = copied(graph)
    recipes = recipes_of(copy, found)
    noting(copy, recipes)
    return recording(make(copy), recipes)
