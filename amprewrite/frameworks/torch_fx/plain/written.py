"""Attributes that a converted model shares with the model that dynamo captures.

Dynamo runs a plain model with the tensors of the converted one. Its forward may write
attributes (a counter, a list of losses), which are those of the converted model too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, Protocol, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    OWN_FORWARD,
    STATE,
    made_anew,
)
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant
from amprewrite.frameworks.torch_fx.untouched.kinds import inside, space_of

_OWN = frozenset(vars(nn.Module())) | {
    *("_flat_weights", "_flat_weight_refs"),
    *("forward", OWN_FORWARD, STATE),
}
"""Attributes of every module, parameters of recurrent layers, and calls."""


def share_attributes(
    model: nn.Module, converted: nn.Module, names: Collection[str] | None = None
) -> None:
    """Give ``model`` the attributes of ``converted``, those that hold no modules.

    Args:
        model: The model.
        converted: A model of the same structure.
        names: Names of the attributes; None for all.
    """
    for part, here in _pairs(model, converted):
        _share(part, here, names)


def _share(part: nn.Module, here: nn.Module, names: Collection[str] | None) -> None:
    own = _OWN | made_anew(here)
    for name, held in vars(here).items():
        if names is not None and name not in names:
            continue
        if name not in own and not _holds_modules(held):
            vars(part)[name] = held


def share_again(programs: Iterable[nn.Module], converted: nn.Module) -> None:
    """Give the models that programs run the attributes of the converted model.

    Args:
        programs: The programs of the converted model.
        converted: The converted model, of which attributes were put back.
    """
    for program in programs:
        if isinstance(program, LazyModule) and not program.path:
            share_attributes(program.model, converted)


class Counts(Protocol):
    """The attributes that were set on a converted model.

    Attributes:
        attributes: Their names.
        others: Number of times that one was set.
    """

    attributes: set[str]
    others: int


def run(
    program: LazyModule,
    converted: nn.Module,
    written: Counts,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run a program, after giving it the attributes that were set on the converted.

    Parts that are not converted (a metric, which runs as it is written) say nothing of
    their changes, so that the program gets all of their attributes.

    Args:
        program: The program.
        converted: The converted model or part.
        written: Attributes that were set on the converted model.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    if program.others != written.others:
        share_attributes(program.model, converted, written.attributes)
        program.others = written.others
    if program.unwatched is None:
        pairs = _pairs(program.model, converted)
        program.unwatched = [pair for pair in pairs if STATE not in vars(pair[1])]
    for part, here in program.unwatched:
        _share(part, here, None)
    return program(*args, **kwargs)


def written_attributes(
    model: nn.Module, converted: nn.Module
) -> list[tuple[nn.Module, nn.Module, str]]:
    """Return the attributes that ``model`` wrote: its part, ours, and the name."""
    return [
        (part, here, name)
        for part, here in _pairs(model, converted)
        for name, held in vars(part).items()
        if name not in _OWN | made_anew(here)
        and not _holds_modules(held)
        and vars(here).get(name, _OWN) is not held
    ]


def write_back(written: list[tuple[nn.Module, nn.Module, str]]) -> None:
    """Write attributes of the model that ran to the converted one."""
    for part, here, name in written:
        if name in vars(part):
            vars(here)[name] = vars(part)[name]


def write_constants(constants: Iterable[Constant], converted: nn.Module) -> bool:
    """Write the constants that a call of the model leaves; return whether one is new.

    Args:
        constants: The constants.
        converted: The converted model or part.
    """
    news = False
    for path, settings, name, value in constants:
        space = vars(converted.get_submodule(path))
        if settings:
            space = space_of(space.get(settings))
        if space is not None and space.get(name) is None:
            space[name], news = value, True
    return news


def _pairs(
    model: nn.Module, converted: nn.Module
) -> Iterator[tuple[nn.Module, nn.Module]]:
    for path, here in module_parts.modules_by_path(converted):
        if not isinstance(here, torch.jit.ScriptModule):
            yield model.get_submodule(path), here


def _holds_modules(value: Any) -> bool:
    """Return whether a value is a module, or a container or function with modules."""
    kind = cast("type[Any]", type(value))
    if kind is partial:
        value = [value.func, *value.args, *value.keywords.values()]
    if kind is MethodType:
        value = [value.__self__]
    return issubclass(kind, nn.Module) or any(map(_holds_modules, inside(value)))
