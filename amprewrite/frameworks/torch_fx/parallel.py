"""Models that several processes train: what is converted first, and what afterwards.

``DistributedDataParallel`` and ``fully_shard`` work by hooks on the calls of modules
and on their parameters. A converted module keeps the parameters but calls no modules
of the model, so it is wrapped as a whole, after the conversion.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx import _compat


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse to convert what is wrapped already.

    Raises:
        UnsupportedError: ``model`` or a part of it is wrapped: a captured program
            would not call the hooks that exchange gradients and parameters.
    """
    found = _first_of((DistributedDataParallel, *_sharded_types()), model)
    if found is not None:
        path, part = found
        what = f"its part {path}" if path else "it"
        how = "fully_shard(converted)"
        if isinstance(part, DistributedDataParallel):
            how = "DistributedDataParallel(converted)"
        msg = (
            f"{type(model).__name__} cannot be converted: {what} is wrapped for "
            f"several processes ({type(part).__name__}), by hooks that a captured "
            f"program does not call; convert the plain model first, and wrap what "
            f"convert gives: {how}"
        )
        raise UnsupportedError(msg)


def refuse_sharded_parts(converted: nn.Module) -> None:
    """Refuse to run a program whose parts were sharded after the conversion.

    Raises:
        UnsupportedError: A part below ``converted`` was given to ``fully_shard``: its
            hooks, which gather the parameters, are not called.
    """
    types = _sharded_types()
    for name, child in _compat.children(converted).items() if types else ():
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


def _sharded_types() -> tuple[type[Any], ...]:
    """Return the classes of sharded modules; none if nothing can be sharded yet."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)


def _first_of(
    types: tuple[type[Any], ...], model: nn.Module
) -> tuple[str, nn.Module] | None:
    """Return path and module of the first part of ``model`` that is of ``types``."""
    for path, part in _compat.modules_by_path(model):
        if isinstance(part, types):
            return path, part
    return None


@contextmanager
def lent(model: nn.Module, owner: nn.Module) -> Generator[None]:
    """Let ``model`` have the tensors that ``owner`` has now, under the same names.

    A model that was built on the meta device, or whose parameters were sharded, was
    left behind by its converted module; captured again, it needs those tensors.

    Args:
        model: What was converted.
        owner: The converted module, which has all modules of ``model``, as containers.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []
    for path, part in _compat.modules_by_path(model):
        here = owner.get_submodule(path)
        for kept in (_compat.parameters, _compat.buffers):
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
