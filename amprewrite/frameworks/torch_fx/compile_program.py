"""Compile the calls of a program in place, with constant weights where it infers."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

import torch

from amprewrite.frameworks.torch_fx.compat import (
    compiling,
    module_parts,
    operators,
    tracing,
)
from amprewrite.frameworks.torch_fx.compat.compiling import inside_transform
from amprewrite.frameworks.torch_fx.lowering.frozen import Frozen, keep_nan
from amprewrite.frameworks.torch_fx.lowering.simplify import written_attributes
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule

Place = tuple[Mapping[str, Any], str]
"""A dict of tensors, and the name of one."""


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
        return compiling.compiled_function(
            run, frozen=True, fixed=True, graph_pass=keep_nan
        )

    frozen = Frozen(freeze, free)

    @cache
    def places() -> tuple[list[Place], list[Place]]:
        return _read_and_written(program)

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or tracing.in_dispatch_mode()
            or operators.in_forward_derivatives()  # compiled code has none
        ):
            return run(*args, **kwargs)
        program.renew()
        if (
            torch.is_grad_enabled()
            or (program.gathers and _is_distributed())
            or inside_transform()
        ):
            return free(*args, **kwargs)
        weights, written = ([held[name] for held, name in part] for part in places())
        return frozen.of(weights, written)(*args, **kwargs)

    compiling.set_called(program, call)


def _is_distributed() -> bool:
    """Return whether calls may gather weights, by writes that torch does not count."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def _read_and_written(program: ConvertedModule) -> tuple[list[Place], list[Place]]:
    """Return the places of the tensors that a program only reads, and writes to."""
    assert program.rewritten is not None
    graph = program.rewritten.graph
    written = written_attributes(graph, program)
    names = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    read = [_places(program, target) for target in sorted(names - written)]
    others = [_places(program, target) for target in sorted(names & written)]
    return [*chain(*read)], [*chain(*others)]


def _places(program: ConvertedModule, target: str) -> Iterator[Place]:
    """Yield the dict and the name of the tensor of an attribute."""
    path, _, name = target.rpartition(".")
    holder = program.get_submodule(path)
    for held in (module_parts.parameters(holder), module_parts.buffers(holder)):
        if name in held:
            yield held, name
