"""Recover the plain model of a converted one, with its current weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import private
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.module.snapshot import copied, deep_copy
from amprewrite.frameworks.torch_fx.module.state import lowered

_OTHERWISE = (
    "make a model of your class and load_state_dict(converted.state_dict()), which "
    "casts to its dtypes"
)


@dataclass(frozen=True)
class Origin:
    """Material for the plain model of a converted one.

    Attributes:
        model: The model itself if its tensors are shared; else a copy of it without
            values; None if it cannot be copied.
        shared: Whether its tensors are those of the converted model.
        reason: Reason why it cannot be copied.
    """

    model: nn.Module | None
    shared: bool
    reason: str = ""


def keep_origin(converted: ConvertedModule, model: nn.Module, *, shared: bool) -> None:
    """Store in ``converted`` its model, or a copy of the model without values.

    Args:
        converted: The converted model.
        model: The model that was converted.
        shared: Whether its parameters are those of ``converted``.
    """
    vars(converted)["_origin"] = (
        Origin(model, shared=True) if shared else _skeleton(model)
    )


def original(model: Any) -> Any:
    """Return the plain model of a converted module; others as they are.

    Raises:
        UnsupportedError: A part of a converted module, or a wrapper around one; the
            module was loaded from a pickle, or its model cannot be copied.
    """
    if isinstance(model, LazyModule):
        return _of_lazy(model)
    if isinstance(model, ConvertedModule):
        return _of_program(model)
    if isinstance(model, nn.Module):
        _refuse_related(model)
    return model


def _of_lazy(converted: LazyModule) -> nn.Module:
    """Return the model that is run if it is trained, else a copy of it."""
    held = vars(converted)
    model: nn.Module = held["_model"]
    return model if held["_use"].trained else _copy(model, {})


def _of_program(converted: ConvertedModule) -> nn.Module:
    """Return the plain model of a program, with the tensors of ``converted``."""
    origin: Origin | None = vars(converted).get("_origin")
    if origin is None:
        msg = (
            f"this module was loaded from a pickle, which has the program and not the "
            f"model it was made from; {_OTHERWISE}"
        )
        raise UnsupportedError(msg)
    if origin.model is None:
        raise UnsupportedError(origin.reason)
    places = list(_places(converted, origin.model))
    if origin.shared and all(now is held for _, _, _, held, now in places):
        if origin.model.training != converted.training:
            origin.model.train(converted.training)
        return origin.model
    memo: dict[int, Any] = {}
    made: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    values: dict[int, Any] = {}
    for _, _, _, held, now in places:
        key = id(now), held.dtype
        if key not in made:
            keep = origin.shared and now.dtype == held.dtype
            made[key] = now if keep else _widened(now, held.dtype, memo)
        values.setdefault(id(held), made[key])
    model = _copy(origin.model, values)
    for path, kept, name, held, now in places:  # tensors that were tied may be no more
        kept(model.get_submodule(path))[name] = made[id(now), held.dtype]
    return model.train(converted.training) if origin.shared else model


def _widened(
    held: torch.Tensor, dtype: torch.dtype, memo: dict[int, Any]
) -> torch.Tensor:
    """Return a copy of ``held`` in ``dtype``."""
    return copied(held, memo) if held.dtype == dtype else lowered(held, dtype)


def _places(
    converted: nn.Module, model: nn.Module
) -> Iterator[tuple[str, Any, str, torch.Tensor, torch.Tensor]]:
    """Yield the locations of tensors of ``model``, and ``converted``'s tensors there.

    Raises:
        UnsupportedError: ``converted`` has no longer a tensor of that name.
    """
    for path, part in private.modules_by_path(model):
        here = converted.get_submodule(path)
        for kept in (private.parameters, private.buffers):
            for name, held in kept(part).items():
                if held is None:
                    continue
                now = kept(here).get(name)
                if now is None:
                    msg = (
                        f"the converted module has no {path}{'.' * bool(path)}{name} "
                        f"any more, which its model has; undo what replaced it, or "
                        f"make a model of your class and set its weights yourself"
                    )
                    raise UnsupportedError(msg)
                yield path, kept, name, held, now


def _skeleton(model: nn.Module) -> Origin:
    """Return a copy of ``model`` with parameters and buffers without values."""
    held = {id(t): t for t in (*model.parameters(), *model.buffers())}
    try:
        copy = _copy(model, {key: _twin(tensor) for key, tensor in held.items()})
    except Exception as error:  # noqa: BLE001  # what tensors and modules of users raise
        reason = (
            str(error) if isinstance(error, UnsupportedError) else _no(model, error)
        )
        return Origin(None, shared=False, reason=reason)
    return Origin(copy, shared=False)


def _twin(held: torch.Tensor) -> torch.Tensor:
    """Return ``held`` on the meta device, without values."""
    with torch.no_grad():
        twin = torch.empty_like(held, device="meta")
    if isinstance(held, nn.Parameter):
        return type(held)(twin, requires_grad=held.requires_grad)
    return twin


def _copy(model: nn.Module, values: dict[int, Any]) -> nn.Module:
    """Return a deep copy of ``model`` with other tensors.

    Args:
        model: The model.
        values: New tensors by the identity of the model's; all or none.

    Raises:
        UnsupportedError: It cannot be copied, or the copy has tensors of its own.
    """
    for name in _rooted(model):
        msg = (
            f"{name} of {type(model).__name__} is a function that refers to parts of "
            f"the model, and a copy would call it with those; make it a method, or "
            f"{_OTHERWISE}"
        )
        raise UnsupportedError(msg)
    wanted = set(map(id, values.values()))
    try:
        made = deep_copy(model, {**values, **_views(model, values)})
        found = set(map(id, (*made.parameters(), *made.buffers())))
    except Exception as error:
        raise UnsupportedError(_no(model, error)) from error
    if wanted and found != wanted:
        error = TypeError("its deep copy has other parameters and buffers")
        raise UnsupportedError(_no(model, error))
    return made


def _views(model: nn.Module, values: dict[int, Any]) -> dict[int, Any]:
    """Return views of the new tensors, by the identity of the model's views.

    They are plain attributes of modules, which would be copied with the values of the
    model's tensors.

    Raises:
        TypeError: The new tensor has another layout.
    """
    strided = torch.strided
    state = [t for t in (*model.parameters(), *model.buffers()) if t.layout == strided]
    bases = {private.storage_identity(t): t for t in state if id(t) in values}
    views: dict[int, Any] = {}
    for part in model.modules():
        for view in vars(part).values():
            if not isinstance(view, torch.Tensor) or view.layout != strided:
                continue
            base = bases.get(private.storage_identity(view))
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


def _no(model: nn.Module, error: Exception) -> str:
    """Return the error that ``model`` cannot be copied."""
    reason = str(error).strip().split("\n")[0]
    return (
        f"{type(model).__name__} cannot be copied ({type(error).__name__}: {reason}), "
        f"so that there is no plain model to give back; {_OTHERWISE}"
    )


def _rooted(model: nn.Module) -> Iterator[str]:
    """Yield the attributes that are functions bound to parts or tensors of ``model``.

    A deep copy shares these functions.
    """
    own = set(map(id, (*model.modules(), *model.parameters(), *model.buffers())))
    for path, part in private.modules_by_path(model):
        for name, held in vars(part).items():
            several = isinstance(held, dict)  # hooks are among these
            functions: Any = vars(part)[name].values() if several else (held,)
            if any(id(found) in own for f in functions for found in _around(f)):
                yield f"{path}.{name}".lstrip(".")


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


def _refuse_related(model: nn.Module) -> None:
    """Refuse a part of a converted module, and a module that contains one.

    Raises:
        UnsupportedError: It is one of these.
    """
    if isinstance(model, KeepsDtypes):
        msg = (
            "this is a part of a converted module, which has the tensors of its part "
            "of the model alone; take the part of original(converted)"
        )
        raise UnsupportedError(msg)
    for path, part in private.modules_by_path(model):
        if isinstance(part, ConvertedModule):
            msg = (
                f"this {type(model).__name__} holds a converted module, {path}; call "
                f"original() with that"
            )
            raise UnsupportedError(msg)
