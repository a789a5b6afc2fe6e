"""The state of a converted model: the model's names, low weights where planned."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.executor import Executor
from amprewrite.frameworks.torch_fx.module.low_marks import mark_low
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.plan import Plan

_NO_VALUES = (
    "the model makes a constant of shape {} in its forward, which on the meta device "
    "has no values that could be kept; convert without args, so that the model is "
    "captured at its first call, on a device with values"
)


EXTRAS = "amprewrite_extras"
"""Name of the part of a program with tensors that are not the model's."""


def stored_weights(reading: Reading, plan: Plan) -> dict[int, torch.Tensor]:
    """Return the low tensors of a plan by the identity of the full ones.

    Each is made once, however many names it has.
    """
    low: dict[int, torch.Tensor] = {}
    for value, dtype in plan.storage:
        if value not in reading.weights:
            continue
        held = attribute(reading.module, reading.weights[value][0])
        low[id(held)] = lowered(held, torch_dtype(dtype))
    return low


def lowered(held: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``held`` in ``dtype``; a parameter stays one, trainable as before.

    Finite values beyond the range of ``dtype`` become infinities, as in any cast.
    """
    low = low_copy(held, dtype)
    if isinstance(held, nn.Parameter):
        return nn.Parameter(low, requires_grad=held.requires_grad)
    return low


def low_copy(held: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``held`` in ``dtype``, as a tensor of its own without a gradient.

    It may be made in a call under ``torch.inference_mode``, and trained later.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        return held.detach().to(dtype)


class _AsCast(torch.autograd.Function):
    """Cast with a result that was computed before."""

    @staticmethod
    def forward(ctx: Any, held: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        ctx.dtype = held.dtype
        return low.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].to(ctx.dtype), None


def as_cast(held: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return ``low``, a copy of ``held``, as a cast that gradients pass through."""
    function: Any = _AsCast
    return function.apply(held, low)


def attribute(root: nn.Module, name: str) -> torch.Tensor:
    """Return the tensor at the dotted ``name`` below ``root``."""
    found: object = root
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch.Tensor):
        msg = f"{name} is a {type(found).__name__}, not a tensor"
        raise TypeError(msg)
    return found


def adopt_assigned(
    target: nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    dtypes: Mapping[str, torch.dtype],
    full: Mapping[str, torch.dtype],
) -> None:
    """Cast tensors that were assigned to the dtypes in which a program reads them.

    Args:
        target: The module that holds them.
        tensors: Its tensors by name.
        dtypes: The dtypes by name; others stay as they are.
        full: The dtypes that the tensors have in the model.
    """
    made: dict[int, torch.Tensor] = {}
    for name, held in tensors:
        dtype, wide = dtypes.get(name, held.dtype), full.get(name)
        if wide is not None and wide != held.dtype == dtype:
            mark_low(held, wide)
        if held.dtype != dtype:
            if id(held) not in made:
                made[id(held)] = lowered(held, dtype)
                mark_low(made[id(held)], wide or held.dtype)
            path, _, last = name.rpartition(".")
            setattr(target.get_submodule(path), last, made[id(held)])


def mirror_state(
    target: nn.Module, model: nn.Module, low: Mapping[int, torch.Tensor]
) -> None:
    """Register the parameters and buffers of ``model`` in ``target``, by their names.

    Args:
        target: Receives empty containers in place of the modules of ``model``.
        model: The model.
        low: Replacement tensors by the identity of the replaced; all others are shared.
    """
    for path, part in module_parts.modules_by_path(model):
        holder = _holder(target, path)
        for name, parameter in part.named_parameters(
            recurse=False, remove_duplicate=False
        ):
            kept: Any = low.get(id(parameter), parameter)
            holder.register_parameter(name, kept)
        hidden = module_parts.hidden_buffers(part)
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            kept = low.get(id(buffer), buffer)
            holder.register_buffer(name, kept, persistent=name not in hidden)


def fold_copies(module: GraphModule) -> Graph:
    """Compute the casts of weights with a second, low copy, once.

    Each becomes a buffer that is not part of ``state_dict``.

    Returns:
        A graph that computes them again, and returns them by buffer name.
    """
    graph, recipe, sources = module.graph, Graph(), dict[Node, Node]()
    copies = {
        f"{EXTRAS}._folded_{number}": node
        for number, node in enumerate(graph.nodes)
        if node.meta.get("amprewrite") == "copy"
    }
    recipe.output({n: _transcribe(c, recipe, sources) for n, c in copies.items()})
    with torch.no_grad():
        values = Executor(module, recipe).run()
    for name, node in copies.items():
        _keep(module, name, values[name])
        with graph.inserting_before(node):
            stored = graph.get_attr(name)
        stored.meta = dict(node.meta)
        node.replace_all_uses_with(stored)
        graph.erase_node(node)
    return recipe


def _transcribe(node: Node, recipe: Graph, sources: dict[Node, Node]) -> Node:
    """Copy ``node`` and all its inputs, recursively, to ``recipe``."""
    if node not in sources:
        sources[node] = recipe.node_copy(
            node, lambda operand: _transcribe(operand, recipe, sources)
        )
    return sources[node]


def _keep(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Register a tensor that is no part of ``state_dict``."""
    path, _, last = name.rpartition(".")
    _holder(module, path).register_buffer(last, value, persistent=False)


def mirror_extras(
    target: nn.Module, module: GraphModule, low: Mapping[int, torch.Tensor]
) -> None:
    """Register in ``target`` tensors and bodies of the graph outside of the state.

    They are constants that the capture lifted out of the code, copies, and bodies of
    higher-order ops. The graph reads them by names below :data:`EXTRAS`.

    Raises:
        UnsupportedError: A constant is on the meta device, so it has no values.
    """
    extras = _holder(target, EXTRAS)
    for node in module.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        held = getattr(module.get_submodule(path), name)
        flat = str(node.target).removeprefix(f"{EXTRAS}.").replace(".", "_")
        if isinstance(held, nn.Module):
            for body in held.modules():
                if isinstance(body, GraphModule):
                    body.recompile()  # its graph was rewritten
            extras.add_module(flat, held)
        elif isinstance(held, torch.Tensor) and not _has(target, path, name):
            if held.is_meta:
                raise UnsupportedError(_NO_VALUES.format(tuple(held.shape)))
            kept = low.get(id(held), held)
            extras.register_buffer(flat, kept.detach(), persistent=False)
        else:
            continue
        _keep_module_or_tensor(module, flat, held)
        node.target = f"{EXTRAS}.{flat}"


def _keep_module_or_tensor(module: GraphModule, flat: str, held: Any) -> None:
    """Register a tensor or body in the captured module under its new name."""
    holder = _holder(module, EXTRAS)
    if isinstance(held, nn.Module):
        holder.add_module(flat, held)
    elif flat not in module_parts.buffers(holder):
        holder.register_buffer(flat, held.detach(), persistent=False)


def _has(target: nn.Module, path: str, name: str) -> bool:
    """Return whether ``target`` has a parameter or buffer of the model there."""
    if path.split(".", maxsplit=1)[0] == EXTRAS:
        return False
    try:
        holder = target.get_submodule(path)
    except AttributeError:
        return False
    held = (module_parts.parameters(holder), module_parts.buffers(holder))
    return any(name in tensors for tensors in held)


def constants_of(graph: Graph, recipe: Graph) -> set[str]:
    """Return the names of the constants of a graph: no low copies, which are renewed.

    Args:
        graph: The graph.
        recipe: Graph that computes the copies.
    """
    held: Any = recipe.output_node().args[0]
    read = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    return {name for name in read - {*held} if name.startswith(f"{EXTRAS}.")}


def read_copies(
    graph: Graph, owner: nn.Module, own: Mapping[str, torch.Tensor], recipe: Graph
) -> Graph:
    """Make a graph read copies of weights that are stored in another dtype.

    Args:
        graph: The graph; it is changed in place.
        owner: The module that runs it; it receives the copies.
        own: The copies by the names of the weights.
        recipe: Graph that computes the copies so far.

    Returns:
        The recipe with the new copies.
    """
    output = recipe.output_node()
    held: Any = output.args[0]
    copies: dict[str, Any] = {**held}
    for number, (name, value) in enumerate(own.items()):
        flat = f"_weight_{number}_{name.replace('.', '_')}"
        target = f"{EXTRAS}.{flat}"
        read = [n for n in graph.find_nodes(op="get_attr") if n.target == name]
        if not read:
            continue
        _keep(owner, target, value.detach())
        for node in read:
            node.target = target
        with recipe.inserting_before(output):
            held = recipe.get_attr(name)
            copies[target] = recipe.call_function(
                torch.ops.aten.to.dtype, (held, value.dtype)
            )
    output.args = (copies,)
    return recipe


def _holder(root: nn.Module, path: str) -> nn.Module:
    """Return the container at ``path`` below ``root``, after adding missing ones."""
    found = root
    for part in path.split(".") if path else ():
        if part not in module_parts.children(found):
            found.add_module(part, KeepsDtypes())
        child = module_parts.children(found)[part]
        found = child if child is not None else nn.Module()
    return found


def mode_name(training: bool) -> str:  # noqa: FBT001  # a mode is a boolean in torch
    """Return the name of a mode."""
    return "train" if training else "eval"
