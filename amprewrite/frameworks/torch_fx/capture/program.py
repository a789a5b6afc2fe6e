"""A captured program: ATen ops in a graph, as torch.export returns it."""

import copy
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.capture.seen import Seen
from amprewrite.frameworks.torch_fx.compat import operators, pytrees, shape_guards

Model = nn.Module | torch.export.ExportedProgram
"""Types of models that can be converted."""


@dataclass
class Captured:
    """A private graph module, with the observations of its capture.

    Attributes:
        module: The program.
        how: Description of the capture, for the plan.
        seen: Features that the model uses.
        notes: Notes for the user on the capture.
    """

    module: GraphModule
    how: str
    seen: Seen
    notes: tuple[str, ...] = ()


def is_program(
    model: Model,
) -> TypeGuard[GraphModule | torch.export.ExportedProgram]:
    """Return whether ``model`` is a captured program: ATen ops in a graph."""
    if not isinstance(model, nn.Module):
        return True
    if not isinstance(model, GraphModule):
        return False
    calls = [n for n in model.graph.nodes if n.op in ("call_function", "call_method")]
    return pytrees.call_structure(model.graph) is not None and all(
        n.op == "call_function" and "val" in n.meta
        for n in calls
        if isinstance(n.target, operators.OpOverload)
    )


def open_program(program: torch.export.ExportedProgram) -> GraphModule:
    """Return the graph module of an exported program, without its run-time checks.

    The conditions on its extents are kept beside the graph: as texts, or as torch's own
    function where a release does not tell the texts.
    """
    untyped: Any = program
    varies = bool(untyped.range_constraints)  # fixed extents are compared otherwise
    with shape_guards.recorded() as texts:
        module = program.module(check_guards=varies)
    function = shape_guards.take_out(module)
    if varies:
        guards = shape_guards.Guards(tuple(texts), None if texts.heard else function)
        shape_guards.keep(module, guards)
    drop_dtype_checks(module)
    return module


def open_graph(model: GraphModule) -> GraphModule:
    """Return a captured module with graphs of its own, without its run-time checks.

    Tensors are shared; a shallow copy would share the graph, and the rewriting would
    change the user's.
    """
    kept = [t for part in model.modules() for t in vars(part).values()]
    held = (*kept, *model.parameters(), *model.buffers())
    shared = {id(t): t for t in held if isinstance(t, torch.Tensor)}
    module = copy.deepcopy(model, shared)
    function = shape_guards.take_out(module)
    if function is not None:
        shape_guards.keep(module, shape_guards.Guards(function=function))
    drop_dtype_checks(module)
    return module


def drop_dtype_checks(module: GraphModule) -> None:
    """Erase assertions about the traced dtypes, which are about to change."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in list(part.graph.nodes):
                name = getattr(
                    getattr(node.target, "overloadpacket", None), "__name__", ""
                )
                if name in ops.FRAMEWORK_ONLY:
                    part.graph.erase_node(node)
            part.recompile()
