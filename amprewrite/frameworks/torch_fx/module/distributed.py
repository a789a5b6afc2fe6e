"""Models trained by several processes: convert first, then wrap the result.

``DistributedDataParallel`` and ``fully_shard`` work by hooks on the calls of modules
and on their parameters. A converted module keeps the parameters but calls no modules
of the model, so it is wrapped as a whole, after the conversion.
"""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.fx import Graph
from torch.nn.parallel import DistributedDataParallel

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name
from amprewrite.frameworks.torch_fx.compat import module_parts, pytrees
from amprewrite.frameworks.torch_fx.module.state import EXTRAS, lowered


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse to convert a model that is wrapped already.

    Raises:
        UnsupportedError: ``model`` or a part of it is wrapped: a captured program
            would not call the hooks that exchange gradients and parameters.
    """
    found = _first_of((DistributedDataParallel, *sharded_types()), model)
    if found is not None:
        path, part = found
        what = f"its part {path}" if path else "it"
        how = "fully_shard(converted)"
        if isinstance(part, DistributedDataParallel):
            how = "DistributedDataParallel(converted)"
        msg = (
            f"{type(model).__name__} cannot be converted: {what} is wrapped for "
            f"several processes ({type(part).__name__}), by hooks that a captured "
            f"program does not call; convert the plain model first, and wrap the "
            f"result: {how}"
        )
        raise UnsupportedError(msg)


def refuse_sharded_parts(converted: nn.Module) -> None:
    """Refuse to run a program with parts that were sharded after the conversion.

    Raises:
        UnsupportedError: A part below ``converted`` was given to ``fully_shard``: its
            hooks, which gather the parameters, are not called.
    """
    types = sharded_types()
    for name, child in module_parts.children(converted).items() if types else ():
        found = None if child is None else _first_of(types, child)
        if found is not None:
            path = ".".join(part for part in (name, found[0]) if part)
            msg = (
                f"part {path} of a converted module was given to fully_shard, but the "
                f"converted program runs as one, without calls of its parts; shard it "
                f"as a whole, or convert each part of the model and shard those: "
                f"model.block = fully_shard(amprewrite.convert(model.block))"
            )
            raise UnsupportedError(msg)


OTHER_DTYPES = (
    "a tensor of the model has another dtype than the one it is stored in, and the "
    "program, which writes to tensors in place, stopped where they met; call it again: "
    "such tensors are cast from now on"
)
"""Message about a run that cannot be done again."""


@dataclass
class Place:
    """Location of a tensor in a converted module.

    Attributes:
        kept: The dict of the owning submodule that holds it.
        name: Its name there.
        dtype: Its dtype when the model was captured.
        cast: Whether the program reads it through casts alone, which accept any dtype.
    """

    kept: dict[str, Any]
    name: str
    dtype: torch.dtype
    cast: bool

    @property
    def held(self) -> torch.Tensor:
        """The current tensor at that location."""
        return self.kept[self.name]

    @property
    def is_there(self) -> bool:
        """Whether there is a tensor: it was not removed."""
        return self.kept.get(self.name) is not None

    @property
    def is_changed(self) -> bool:
        """Whether there is a tensor of another dtype than at the capture."""
        held = self.kept.get(self.name)
        return held is not None and held.dtype != self.dtype


def places(converted: nn.Module, graph: Graph) -> list[Place]:
    """Return the locations of the parameters and buffers that ``graph`` reads."""
    found: list[Place] = []
    for node in graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        if path.startswith(EXTRAS):
            continue
        holder = converted.get_submodule(path)
        cast = all(user.target == torch.ops.aten.to.dtype for user in node.users)
        held: Any = module_parts.parameters(holder), module_parts.buffers(holder)
        found += [
            Place(kept, name, kept[name].dtype, cast) for kept in held if name in kept
        ]
    return found


def gathered_otherwise(known: Sequence[Place], *, always: bool = False) -> list[Place]:
    """Return the tensors with another dtype than at the capture.

    ``fully_shard`` gathers them so by ``MixedPrecisionPolicy(param_dtype=...)``.

    Args:
        known: The locations.
        always: Whether to look although nothing can be sharded yet.
    """
    if torch.compiler.is_compiling():  # each that is looked at is a guard at each call
        known = known if any(p.is_changed for p in known[:1]) else ()
    elif not always and not sharded_types():
        return []
    return [p for p in known if p.is_changed]


def refuse_to_run_again(graph: Graph, error: RuntimeError) -> None:
    """Refuse to run a graph again if it writes to tensors in place.

    It stopped at tensors with other dtypes than at the capture, which
    ``torch.func.functional_call`` writes to the dicts of a model without notice.

    Raises:
        UnsupportedError: It does.
    """
    schemas = (getattr(node.target, "_schema", None) for node in graph.nodes)
    if any(schema is not None and schema.is_mutable for schema in schemas):
        raise UnsupportedError(OTHER_DTYPES) from error


class Gathers(Protocol):
    """A program that may look at all of its tensors at each call.

    Attributes:
        gathers: Whether it does.
    """

    gathers: bool


def look_at_all(
    program: Gathers, known: Sequence[Place], graph: Graph, error: RuntimeError
) -> None:
    """Look at all tensors from now on, if one has another dtype than at the capture.

    Args:
        program: The program.
        known: The locations of its tensors.
        graph: Its graph.
        error: Error of a run, which is raised again where none has.

    Raises:
        UnsupportedError: One has, and the graph writes to tensors in place.
    """
    if program.gathers or not gathered_otherwise(known, always=True):
        raise error
    program.gathers = True
    refuse_to_run_again(graph, error)


@contextmanager
def read_as_captured(
    changed: Sequence[Place], *, copied: bool = False
) -> Generator[None]:
    """Cast parameters, each once, to the dtypes that they were captured in.

    Parameters that the program casts itself stay as gathered: the backward pass then
    saves the gathered parameter, which is freed in between.

    Args:
        changed: Parameters with another dtype than at the capture.
        copied: Whether to make all of them parameters again, to capture a model with.
    """
    before = [(place, place.held) for place in changed if copied or not place.cast]
    made: dict[int, torch.Tensor] = {}
    for place, held in before:
        if id(held) not in made:
            cast = lowered if copied else torch.Tensor.to
            made[id(held)] = cast(held, place.dtype)
        place.kept[place.name] = made[id(held)]
    try:
        yield
    finally:
        for place, held in before:
            place.kept[place.name] = held


def inputs_as_captured(arguments: Any, changed: Sequence[Place]) -> Any:
    """Return call arguments in the dtypes that they had before a shard cast them."""
    dtypes = {place.held.dtype: place.dtype for place in changed}

    def cast(leaf: Any) -> Any:
        tensor = isinstance(leaf, torch.Tensor)
        return leaf.to(dtypes.get(leaf.dtype, leaf.dtype)) if tensor else leaf

    return pytrees.pytree.tree_map(cast, arguments)


def refuse_other_dtypes(model: nn.Module, known: Mapping[str, torch.dtype]) -> None:
    """Refuse to capture a model with parameters gathered in another dtype.

    Raises:
        UnsupportedError: A parameter had another dtype when ``model`` was converted.
    """
    for name, parameter in model.named_parameters() if sharded_types() else ():
        wanted = known.get(name, parameter.dtype)
        if parameter.dtype != wanted:
            msg = (
                f"parameter {name} is gathered as {dtype_name(parameter.dtype)}, by a "
                f"MixedPrecisionPolicy(param_dtype=...), and was "
                f"{dtype_name(wanted)} when the model was converted: a capture at the "
                f"first call would run all of it in {dtype_name(parameter.dtype)}; "
                f"leave param_dtype out, since the plan has the casts, or convert with "
                f"args="
            )
            raise UnsupportedError(msg)


def sharded_types() -> tuple[type[Any], ...]:
    """Return the classes of sharded modules; none if nothing can be sharded yet."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)


def _first_of(
    types: tuple[type[Any], ...], model: nn.Module
) -> tuple[str, nn.Module] | None:
    """Return path and module of the first part of ``model`` that is of ``types``."""
    for path, part in module_parts.modules_by_path(model):
        if isinstance(part, types):
            return path, part
    return None


@contextmanager
def lent(model: nn.Module, owner: nn.Module) -> Generator[None]:
    """Lend ``model`` the current tensors of ``owner``, under the same names.

    A model that was built on the meta device, or has had its parameters sharded, no
    longer has the tensors of its converted module; a new capture needs them.

    Args:
        model: The model that was converted.
        owner: The converted module, which has all modules of ``model``, as containers.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    for path, part in module_parts.modules_by_path(model):
        here = owner.get_submodule(path)
        for kept in (module_parts.parameters, module_parts.buffers):
            theirs: dict[str, Any] = kept(part)
            for name in theirs.keys() & kept(here).keys():
                before.append((theirs, name, theirs[name]))
                theirs[name] = kept(here)[name]
    try:
        yield
    finally:
        # backwards, since a module with two paths was given its tensors twice
        for theirs, name, held in reversed(before):
            theirs[name] = held
