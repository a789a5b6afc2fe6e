"""Classes of converted models, derived from the models' own classes.

A converted model is an instance of such a class, and so are its parts: fields, methods
and type checks work as before; only calls differ.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn
from torch.fx import GraphModule, Proxy

from amprewrite.errors import NotCapturedError, UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.derived.layout import class_before
from amprewrite.frameworks.torch_fx.derived.refusals import (
    SYMBOLIC,
    KeepsPrograms,
    no_shallow_copy,
    refuse_copy_of_other,
)
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes
from amprewrite.frameworks.torch_fx.module.snapshot import deep_copy
from amprewrite.frameworks.torch_fx.plain.plain_class import (
    OWN_FORWARD,
    PLAIN,
    STATE,
    plain_class,
    plain_copy,
    plain_object,
    plain_state,
)
from amprewrite.frameworks.torch_fx.plain.plain_model import (
    full_dtypes,
    mark_as,
)
from amprewrite.frameworks.torch_fx.plain.tree import runs_as_written
from amprewrite.frameworks.torch_fx.plain.watched import (
    WATCHED,
    watch_dicts,
    watch_tensors,
)
from amprewrite.frameworks.torch_fx.programs.program_table import Programs
from amprewrite.frameworks.torch_fx.programs.shared_state import SharedState

_TAKEN = "_amprewrite_taken"
"""Attribute of a derived class: names of ours that the model uses itself."""


class ConvertedPart(KeepsPrograms):
    """Part of a converted model; called by itself it is converted by itself."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a derived class without the hook of the model's own classes.

        It may want arguments, or register the class for users to choose.
        """
        del options

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and count the change."""
        state = self.__dict__.get(STATE)
        if state is not None:
            state.shared.watch.note(self, name, value)
        super().__setattr__(name, value)
        if state is not None and name in WATCHED:  # torch replaces them after removals
            state.shared.watch.count()
            watch_dicts(self, state.shared.watch, (name,))

    def __delattr__(self, name: str) -> None:
        """Delete an attribute, and count the change."""
        if (state := self.__dict__.get(STATE)) is not None:
            state.shared.watch.count()
        above: Any = super()
        above.__delattr__(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter, or None in its place, and count the change."""
        if (state := self.__dict__.get(STATE)) is not None:
            state.shared.watch.note_tensor(module_parts.parameters(self), name, param)
        super().register_parameter(name, param)

    def register_buffer(self, name: str, *given: Any, **named: Any) -> None:
        """Add a buffer, or None in its place, and count the change."""
        if (state := self.__dict__.get(STATE)) is not None:
            state.shared.watch.count()
        super().register_buffer(name, *given, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy as a plain module: a part has no programs of its own."""
        return plain_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as a plain module: a part has no programs of its own."""
        del protocol
        kind = plain_class(type(self))
        return plain_object, (kind,), plain_state(self)

    def _get_name(self) -> str:
        return plain_class(type(self)).__name__

    def train(self, mode: bool = True) -> Any:  # noqa: FBT001, FBT002  # as nn.Module
        """Set the mode of the next call.

        Raises:
            UnsupportedError: Train mode of a model that was converted for inference.
        """
        state: Programs | None = self.__dict__.get(STATE)
        if state is not None:
            state.shared.check_mode(mode)
        super().train(mode)
        if state is not None and not state.path:
            state.look_up(self)
        return self


class ConvertedModel(ConvertedPart):
    """Model that ``convert`` returns for torch, of a class derived from the model's.

    It has the model's attributes, methods, submodules, parameters and buffers, and runs
    a rewritten program for each signature and mode that it is called with.

    A model converted for inference is a snapshot: some weights are low, and all tensors
    are its own, so that changes of one do not affect the other. It cannot be trained:
    ``train()`` raises UnsupportedError. A model converted for training shares the
    parameters and buffers of the model.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a deep copy with programs of its own.

        Raises:
            UnsupportedError: It is asked for the copy of another object, which hands
                on all attributes that it does not have.
        """
        here = inspect.currentframe()  # the frame of copy alone has the copied object
        refuse_copy_of_other(self, None if here is None else here.f_back)
        made = plain_copy(self, memo, lambda state, memo: deep_copy(self, memo, state))
        mark_as(made, full_dtypes(self))
        programs: Programs = self.__dict__[STATE]
        adopt(made, programs.copied_to(made, memo), linked=True)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the model's class: a class made at run time has no name to load."""
        del protocol
        programs: Programs = self.__dict__[STATE]
        state = plain_state(self), list(full_dtypes(self)), programs.to_pickle()
        taken = tuple(vars(type(self)).get(_TAKEN, ()))
        return _converted_object, (plain_class(type(self)), taken), state

    def __setstate__(self, state: Any) -> None:
        """Restore the model with its programs."""
        module, full, stored = state
        above: Any = super()
        above.__setstate__(module)
        mark_as(self, full)
        trains, mode, programs = stored
        made = Programs(SharedState(None, trains, mode), self)
        made.store(programs)
        adopt(self, made, linked=True)

    def __copy__(self) -> Any:
        """Refuse a shallow copy.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(no_shallow_copy(self))

    def __dir__(self) -> list[str]:
        """Return the names of the attributes, without ours that there are not yet.

        Tools read all of them, and one that is not there raises.
        """
        programs: Programs = self.__dict__[STATE]
        try:
            programs.plan  # noqa: B018  # it may raise
        except NotCapturedError:
            return [name for name in super().__dir__() if name not in _PUBLIC]
        return super().__dir__()

    def __repr__(self) -> str:
        """Return the text of the model, and that it is converted."""
        return f"Converted{super().__repr__()}"

    def extra_repr(self) -> str:
        """Return the model's own text, and a line about its precision."""
        programs: Programs = self.__dict__[STATE]
        above: Any = super()
        return "\n".join(filter(None, (above.extra_repr(), programs.line())))


_PUBLIC: Mapping[str, Callable[[Any], Any]] = {
    "plan": attrgetter("plan"),
    "plans": attrgetter("plans"),
    "casts": attrgetter("plan.casts"),
    "rewritten": attrgetter("rewritten"),
}
"""Properties of converted models, each of their programs.

A model that has a name of its own there keeps it.
"""


def _property(of_programs: Callable[[Any], Any]) -> property:
    return property(lambda model: of_programs(model.__dict__[STATE]))


def _recapture(
    model: Any, args: tuple[Any, ...] | None = None, kwargs: Any = None
) -> None:
    """Capture the model again: now with ``args``, else at its next calls.

    A converted model does not notice a changed global variable, a constant of a class,
    or an edit in a container that is not the model's (docs/converted_modules.md). After
    such a change its programs are those from before, until they are captured again. All
    programs of the model and of its parts go, for every signature and mode.

    Args:
        model: The converted model.
        args: Positional arguments of a call, whose program is captured now; a model
            that was converted with args needs them, because its plan is there at once.
        kwargs: Keyword arguments of that call.

    Raises:
        CaptureError: The model cannot be captured for these arguments.
        UnsupportedError: The model was converted with args, and none are given; or it
            was loaded from a file, and cannot be captured.
    """
    model.__dict__[STATE].recapture(model, args, kwargs)


def programs_of(model: object) -> Programs | None:
    """Return the programs of a converted model; None of anything else."""
    return vars(model)[STATE] if isinstance(model, ConvertedModel) else None


def adopt(model: nn.Module, programs: Programs, *, linked: bool = False) -> None:
    """Make a plain model, in place, a converted one that runs ``programs``.

    Converted models inside keep their own programs.

    Args:
        model: The model.
        programs: Its programs.
        linked: Whether programs hold its tensors already.
    """
    shared = programs.shared
    taken = frozenset(name for name in _PUBLIC if name in vars(model))
    if not isinstance(model, ConvertedModel):
        model.__class__ = derived_class(type(model), ConvertedModel, taken)
        if "forward" in vars(model):
            vars(model)[OWN_FORWARD] = vars(model).pop("forward")
    vars(model)[STATE] = programs
    watch_dicts(model, shared.watch, ("_modules",))
    watch_tensors(model, shared.watch, linked=linked)
    shared.own(model, adopt_parts)
    adopt_parts(model, shared, linked=linked)


def adopt_parts(model: nn.Module, shared: SharedState, *, linked: bool = False) -> None:
    """Make the plain parts of a converted model converted ones; see :func:`adopt`."""
    seen = {id(model)}
    below = [("", model)]
    while below:
        path, part = below.pop()
        children: Mapping[str, nn.Module | None] = vars(part).get("_modules", {})
        for name, child in children.items():
            here = f"{path}.{name}".lstrip(".")
            if child is None or id(child) in seen or not _can_adopt(child):
                continue
            seen.add(id(child))
            if not isinstance(child, ConvertedPart):
                none = frozenset[str]()
                child.__class__ = derived_class(type(child), ConvertedPart, none)
            held: Programs | None = vars(child).get(STATE)
            if held is not None and held.shared is not shared:
                msg = (
                    f"part {here} is a part of another converted model, whose programs "
                    f"follow its changes; give this model a copy: copy.deepcopy(part), "
                    f"which is a plain module"
                )
                raise UnsupportedError(msg)
            if held is None:
                vars(child)[STATE] = Programs(shared, child, here)
                watch_dicts(child, shared.watch, WATCHED)
                watch_tensors(child, shared.watch, linked=linked)
            below.append((here, child))


def refuse_parts(model: nn.Module) -> None:
    """Refuse to convert a model with parts that were taken from a converted one.

    Raises:
        UnsupportedError: Names the first such part.
    """
    below = [("", model)]
    while below:
        path, part = below.pop()
        if isinstance(part, ConvertedModel):
            continue  # a whole converted model is one of its parts
        if isinstance(part, ConvertedPart):
            msg = (
                f"part {path or '(all of it)'} was taken from a converted model, and "
                f"may have low weights; take it from amprewrite.original(converted), "
                f"or convert the model that it belongs to as a whole"
            )
            raise UnsupportedError(msg)
        for name, child in module_parts.children(part).items():
            if child is not None:
                below.append((f"{path}.{name}".lstrip("."), child))


def _can_adopt(part: nn.Module) -> bool:
    """Return whether a part may be of a derived class: no graph, script or metric."""
    if isinstance(part, (ConvertedModel, GraphModule, torch.jit.ScriptModule)):
        return False
    if runs_as_written(part):
        return False
    return isinstance(part, ConvertedPart) or not isinstance(part, KeepsDtypes)


@cache
def derived_class(kind: Any, role: type[ConvertedPart], taken: frozenset[str]) -> Any:
    """Return the class of converted models, or parts, of class ``kind``.

    It has the name of that class: libraries look names up, to choose a task, a loss or
    a file format, and write them to files. Its qualified name has the prefix Converted.

    Args:
        kind: The class of the model.
        role: :class:`ConvertedModel` or :class:`ConvertedPart`.
        taken: Names that the model uses itself.
    """
    if (kind.__module__, kind.__name__) == (
        "torch.nn.utils.parametrize",
        f"Parametrized{kind.__bases__[0].__name__}",
    ):
        return _parametrized_class(kind, role, taken)
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": f"Converted{kind.__qualname__}",
        "__doc__": kind.__doc__,
        PLAIN: kind,
        _TAKEN: taken,
        "__init__": _init(kind),
    }
    if kind.forward is not nn.Module.forward:
        body["forward"] = _forward(kind)
    if role is ConvertedModel:
        for name, function in _PUBLIC.items():
            if not hasattr(kind, name) and name not in taken:
                body[name] = _property(function)
        if not hasattr(kind, "recapture"):
            body["recapture"] = _recapture
        for name in _SAVES:
            if hasattr(kind, name):
                body[name] = _on_plain(kind, name)
    return class_before(role, kind, body)


def _parametrized_class(
    kind: Any, role: type[ConvertedPart], taken: frozenset[str]
) -> Any:
    """Return the class of converted modules of a class that torch derived for one.

    When the last parametrization is removed, torch deletes the properties from the
    class, and gives the module the first base. So the first base here is the converted
    class of the module before it was parametrized.
    """
    above = derived_class(kind.__bases__[0], role, taken)
    space = cast("Mapping[str, object]", vars(kind))
    body: dict[str, Any] = {
        **{name: held for name, held in space.items() if isinstance(held, property)},
        "__module__": kind.__module__,
        "__qualname__": f"Converted{kind.__name__}",
        PLAIN: kind,
    }
    return type(above)(kind.__name__, (above,), body)


def _init(kind: Any) -> Callable[..., None]:
    """Return the ``__init__`` of a derived class, which makes an object of ``kind``.

    Libraries make new models of the class of a model (``from_pretrained``). They have
    no programs, and are plain.
    """

    @wraps(kind.__init__)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__class__ = plain_class(type(self))
        self.__init__(*args, **kwargs)

    return init


_SAVES = ("save_pretrained", "push_to_hub")
"""Methods that save a model with the name of its class: they save the plain model."""


def _forward(kind: Any) -> Callable[..., Any]:
    """Return the ``forward`` of a derived class."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        programs = self.__dict__.get(STATE)
        if programs is None:  # called on a plain copy, by a wrapper that was copied
            return kind.forward(self, *args, **kwargs)
        if isinstance(kwargs, Proxy):
            raise UnsupportedError(SYMBOLIC)
        return programs.call(self, args, kwargs)

    forward.__doc__ = kind.forward.__doc__
    forward.__qualname__ = f"Converted{kind.__qualname__}.forward"
    forward.__module__ = kind.__module__
    untyped: Any = forward
    untyped.__signature__ = inspect.signature(kind.forward)
    return forward


def _on_plain(kind: Any, name: str) -> Callable[..., Any]:
    def on_plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.__dict__[STATE].original(self), name)(*args, **kwargs)

    on_plain.__doc__ = getattr(kind, name).__doc__
    on_plain.__name__ = name
    return on_plain


def _converted_object(kind: Any, taken: tuple[str, ...]) -> Any:
    return object.__new__(derived_class(kind, ConvertedModel, frozenset(taken)))
