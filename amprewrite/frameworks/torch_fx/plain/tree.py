"""Copies of the tree of modules of a model."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts, tensor_internals
from amprewrite.frameworks.torch_fx.module.snapshot import deep_copy
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    made_anew,
    plain_object,
    plain_state,
)
from amprewrite.frameworks.torch_fx.untouched.kinds import inside

OTHERWISE = (
    "make a model of your class and load_state_dict(converted.state_dict()), which "
    "casts to its dtypes"
)
"""Advice where there is no plain model."""


def copy_tree(
    model: nn.Module, values: Mapping[int, Any], kind: Any = None
) -> nn.Module:
    """Return a copy of ``model`` with other tensors.

    An attribute that cannot be copied (a lock, an open file) is shared. A view of a
    weight, kept as an attribute, becomes a view of the new weight.

    Args:
        model: The model.
        values: New tensors by the identity of the model's parameters and buffers, and
            other replacements.
        kind: Class of the copy of a converted model; None for that of the model.

    Raises:
        UnsupportedError: The model cannot be copied even so.
    """
    try:
        given = {**values, **_views(model, values)}
        try:
            made = _copied(model, dict(given), kind)
        except Exception:  # noqa: BLE001  # whatever the attributes of users raise
            made = _copied(model, {**given, **_uncopyable(model, given)}, kind)
    except Exception as error:
        raise UnsupportedError(no_copy(model, error)) from error
    held = {id(values.get(id(t), t)) for t in (*model.parameters(), *model.buffers())}
    for _, part in scripts_of(model):  # it has a stand-in, with tensors of its own
        stand_in = values.get(id(part), part)
        held.update(map(id, (*stand_in.parameters(), *stand_in.buffers())))
    if not held.issuperset(map(id, (*made.parameters(), *made.buffers()))):
        error = TypeError("its deep copy has other parameters and buffers")
        raise UnsupportedError(no_copy(model, error))
    return made


def scripts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost parts in TorchScript, with their paths."""
    inside: set[int] = set()
    for path, part in module_parts.modules_by_path(model):
        if isinstance(part, torch.jit.ScriptModule) and id(part) not in inside:
            inside.update(map(id, part.modules()))
            yield path, part


def scripted(model: nn.Module) -> dict[int, nn.Module]:
    """Return the parts in TorchScript by identity: a copy shares them."""
    return {id(part): part for _, part in scripts_of(model)}


def _copied(model: nn.Module, memo: dict[int, Any], kind: Any) -> nn.Module:
    if kind is None:
        return deep_copy(model, memo)
    made = memo[id(model)] = plain_object(kind)
    made.__setstate__(deep_copy(model, memo, plain_state(model)))
    return made


def no_copy(model: nn.Module, error: Exception) -> str:
    """Return the message that ``model`` cannot be copied."""
    reason = str(error).strip().split("\n")[0]
    return (
        f"{type(model).__name__} cannot be copied ({type(error).__name__}: {reason}), "
        f"so that there is no plain model to give back or to capture; {OTHERWISE}"
    )


def _attributes(parts: Iterable[nn.Module]) -> Iterator[object]:
    """Yield the attributes of all parts, and their hooks one by one."""
    own = vars(nn.Module()).keys()  # those of every module
    for part in parts:
        for name, held in vars(part).items():
            if name not in own:
                yield held
            elif "hooks" in name:
                yield from held.values()


def _uncopyable(model: nn.Module, values: Mapping[int, Any]) -> dict[int, Any]:
    """Return the attributes of all parts that cannot be copied, by identity."""
    found: dict[int, Any] = {}
    parts = {id(part): part for part in model.modules()}
    for held in _attributes(parts.values()):
        try:
            copy.deepcopy(held, {**parts, **values})
        except Exception:  # noqa: BLE001  # as above
            found[id(held)] = held
    return found


def _views(model: nn.Module, values: Mapping[int, Any]) -> dict[int, Any]:
    """Return views of the new tensors, by the identity of the model's views.

    They are plain attributes of modules, which would be copied with the values of the
    model's tensors.

    Raises:
        TypeError: The new tensor has another layout.
    """
    strided = torch.strided
    held = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    state = [t for t in held if t.layout == strided]
    bases = {tensor_internals.storage_identity(t): t for t in state if id(t) in values}
    views: dict[int, Any] = {}
    for part in model.modules():
        for view in vars(part).values():
            if not isinstance(view, torch.Tensor) or is_lazy(view):
                continue
            if view.layout != strided:
                continue
            base = bases.get(tensor_internals.storage_identity(view))
            if base is None:
                continue
            new: torch.Tensor = values[id(base)].detach()
            if new.stride() != base.stride() or view.dtype != base.dtype:
                msg = "it keeps a view of a weight that is laid out otherwise now"
                raise TypeError(msg)
            start = view.storage_offset() - base.storage_offset()
            views[id(view)] = new.as_strided(
                view.size(), view.stride(), new.storage_offset() + start
            )
    return views


def bound_attribute(model: nn.Module) -> str:
    """Return the reason not to copy a model: a function that refers to its parts.

    Empty without one. A copy would call the function with the parts of the model.
    """
    for name in bound_attributes(model):
        return (
            f"{name} of {type(model).__name__} is a function that refers to parts of "
            f"the model, and a copy would call it with those; make it a method, or "
            f"{OTHERWISE}"
        )
    return ""


def bound_attributes(model: nn.Module) -> Iterator[str]:
    """Yield the attributes that are functions bound to parts or tensors of ``model``.

    A deep copy shares these functions, but for those that the state of a part leaves
    out, to make them anew.
    """
    own = set(map(id, (*model.modules(), *model.parameters(), *model.buffers())))
    for path, part in module_parts.modules_by_path(model):
        anew = made_anew(part)
        for name, held in vars(part).items():
            if name in anew:
                continue
            several = issubclass(type(held), dict)  # hooks are among these
            functions = inside(held)[1::2] if several else (held,)
            if any(id(found) in own for f in functions for found in _around(f)):
                yield f"{path}.{name}".lstrip(".")


def runs_as_written(part: nn.Module) -> bool:
    """Return whether a part, called by itself, is to run without a conversion.

    A metric of torchmetrics adds up its state in functions that it binds to itself, and
    makes anew in each copy. That state is neither rounded nor captured. So is a
    collection of such parts.
    """
    if _wraps_itself(part):
        return True
    if next(part.parameters(), None) is not None:
        return False
    return any(map(_wraps_itself, part.modules()))


def _wraps_itself(part: nn.Module) -> bool:
    held = vars(part)
    return any(found is part for n in made_anew(part) for found in _around(held[n]))


def _around(function: Any) -> Iterator[object]:
    """Yield the objects in ``function``: its closure variables and its defaults."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a variable that is not set yet
                continue
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
