"""Compile the calls of a program in place, with constant weights where it infers."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat import (
    compiling,
    dynamo_state,
    module_parts,
    tracing,
)
from amprewrite.frameworks.torch_fx.lowering.bounded import keep_nan
from amprewrite.frameworks.torch_fx.lowering.constants import written_attributes
from amprewrite.frameworks.torch_fx.lowering.frozen import Frozen
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule


def compile_program(program: ConvertedModule, *, trains: bool) -> None:
    """Compile the calls of a program from now on, by torch's default compiler.

    A program of inference is frozen in calls without gradients: its weights become
    constants of the compiled code, which is made again when one is written to.

    Args:
        program: The program; its first call comes after it was linked to a model.
        trains: Whether its weights are trained: then they are inputs of the compiled
            function, in forward and backward pass.
    """
    run = compiling.called(program)
    free = compiling.compiled_function(run)
    if trains:
        compiling.set_called(program, free)
        return

    def freeze() -> Callable[..., Any]:
        return compiling.compiled_function(run, frozen=True, graph_pass=keep_nan)

    frozen = Frozen(freeze, free)

    @cache
    def places() -> list[tuple[Mapping[str, Any], str]]:
        return _constant_weights(program)

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or tracing.in_dispatch_mode():
            return run(*args, **kwargs)
        program.renew()
        if (
            torch.is_grad_enabled()
            or (program.gathers and _is_distributed())
            or dynamo_state.inside_transform()
        ):
            return free(*args, **kwargs)
        weights = [held[name] for held, name in places()]
        return frozen.of(weights)(*args, **kwargs)

    compiling.set_called(program, call)


def _is_distributed() -> bool:
    """Return whether calls may gather weights, by writes that torch does not count."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def _constant_weights(program: ConvertedModule) -> list[tuple[Mapping[str, Any], str]]:
    """Return the dict and the name of each tensor that a program reads alone."""
    assert program.rewritten is not None
    graph = program.rewritten.graph
    written = written_attributes(graph)
    names = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    found: list[tuple[Mapping[str, Any], str]] = []
    for target in sorted(names - written):
        path, _, name = target.rpartition(".")
        holder = program.get_submodule(path)
        kept = module_parts.parameters(holder), module_parts.buffers(holder)
        found += [(held, name) for held in kept if name in held]
    return found
