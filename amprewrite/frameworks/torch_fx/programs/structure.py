"""Detect changes of a converted model that its captured programs do not have."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.seen import (
    ALL,
    Names,
    is_recorded,
    is_settings,
)
from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark, Marks
from amprewrite.frameworks.torch_fx.compat import module_hooks, module_parts
from amprewrite.frameworks.torch_fx.compat.tensor_internals import counts_writes
from amprewrite.frameworks.torch_fx.plain.hidden import HiddenTensors, hidden_modules
from amprewrite.frameworks.torch_fx.plain.plain_class import program_class
from amprewrite.frameworks.torch_fx.untouched.kinds import inside

_TORCHS = frozenset((*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"))
"""Attributes of every module, which are compared otherwise.

So are the lists that a recurrent layer makes of its parameters.
"""

Key = tuple[Any, ...]
"""Key of the structure of a model: equal for models with the same programs."""

Flag = tuple[str, type[Any], object]
"""Name, type and value of an attribute that a program has as a constant."""


class Watch:
    """Counters of the changes of a tree of modules.

    Attributes:
        structure: Number of changes of submodules, hooks, modes and flags.
        changed: Whether the structure changed since the programs of the model were
            looked up: one flag, since a compiler guards on each value that it reads.
        tensors: Number of parameters and buffers that were set.
        attributes: Names of the other attributes that were set.
        others: Number of times that one of these was set.
        names: Names of attributes that programs read, of any part.
    """

    def __init__(self) -> None:
        """Start without changes."""
        self.structure = self.tensors = self.others = 0
        self.attributes = set[str]()
        self.names: Names = frozenset()
        self.changed = True

    def count(self) -> None:
        """Count a change of the structure."""
        self.structure += 1
        self.changed = True

    def note(self, part: nn.Module, name: str, value: object) -> None:
        """Count that attribute ``name`` of ``part`` is about to be set."""
        held, children = vars(part), module_parts.children(part)
        read = name in ("__class__", "forward") or is_read(name, self.names)
        if name in module_parts.parameters(part) or isinstance(value, nn.Parameter):
            self.note_tensor(module_parts.parameters(part), name, value)
        elif name in module_parts.buffers(part):
            self.note_tensor(module_parts.buffers(part), name, value)
        elif name == "training":
            if held.get(name) is not value:
                self.count()
        elif isinstance(value, nn.Module) or name in children or read:
            self.count()
        if name != "training" and not isinstance(value, nn.Module):
            self.others += 1
            self.attributes.add(name)

    def note_tensor(self, kept: Mapping[str, object], name: str, value: object) -> None:
        """Count that a parameter or buffer is about to be set.

        Args:
            kept: The parameters or buffers of the part.
            name: Name of the tensor.
            value: Its next value.
        """
        self.tensors += 1
        if kept.get(name) is None or value is None:
            self.count()


def is_read(name: str, names: Names) -> bool:
    """Return whether an attribute that is not torch's own is among those read."""
    return name not in _TORCHS and (name in names or ALL in names)


def structure_key(root: nn.Module, names: Names, *, by_name: bool = False) -> Key:
    """Return the key of the structure of ``root``.

    It has the classes, modes, hooks and names of tensors of all parts, which of these
    name one tensor, the values of the attributes that programs read, and those of
    modules that are not submodules, but neither tensors nor the hooks of ``root``
    itself, which run around its programs.

    Args:
        root: The model.
        names: The attributes that programs read.
        by_name: Whether programs read parameters and buffers by name also where a
            container has them too, as those in training do. A write to one then changes
            no program: of the list of weights of a recurrent layer, for example.
    """
    own = _owned(root, by_name=by_name)
    hidden = HiddenTensors(hidden_modules(root).values(), own.keys())
    keys = (_part_key(root, path, part, names, own) for path, part in parts_of(root))
    return (names, hidden, ties_of(root), *keys)


Owned = Mapping[int, Any]
"""The dict of each tensor that programs read by name, by the identity of the tensor."""


_NOTHING: Owned = {}


def _owned(root: nn.Module, *, by_name: bool) -> Owned:
    if not by_name:
        return _NOTHING
    return {
        id(tensor): space
        for _, part in parts_of(root)
        for space in (module_parts.parameters(part), module_parts.buffers(part))
        for tensor in space.values()
        if tensor is not None
    }


def ties_of(root: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of each parameter or buffer of ``root`` that has several.

    A program reads such a tensor by one of them.
    """
    names: dict[int, list[str]] = {}
    for path, part in parts_of(root):
        for kept in (module_parts.parameters(part), module_parts.buffers(part)):
            for name, held in kept.items():
                if held is not None:
                    names.setdefault(id(held), []).append(f"{path}.{name}")
    return tuple(tuple(found) for found in names.values() if found[1:])


def portable(key: Key) -> Key:
    """Return a key of a structure that can be pickled, with the names of classes.

    The names of the attributes that programs read come first. An object counts by its
    class, and a tensor by its shape and dtype: both are loaded with the programs, which
    have their values.
    """
    names, _, ties, *parts = key
    found: list[object] = [names, *([ties] if ties else ())]
    for part in parts:
        path, kind, training, hooks, flags = cast("tuple[Any, ...]", part)
        name = f"{kind.__module__}.{kind.__qualname__}"
        values = tuple(
            (flag, kind.__qualname__, _in_portable_key(value))
            for flag, kind, value in flags
        )
        found.append((path, name, training, len(hooks), values))
    return tuple(found)


def parts_of(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield ``root`` and its submodules, each under all of its paths."""
    yield from module_parts.modules_by_path(root)


def _part_key(
    root: nn.Module,
    path: str,
    part: nn.Module,
    names: Names,
    own: Owned,
) -> Key:
    hooks, flags = module_hooks.call_hooks(part), tuple(_flags(part, names, own))
    if part is root:  # its programs run inside of these
        hooks, flags = (), tuple(flag for flag in flags if flag[0] != "forward")
    return path, program_class(type(part)), part.training, hooks, flags


def _flags(part: nn.Module, names: Names, own: Owned) -> Iterator[Flag]:
    """Yield the attributes of a part that programs read, with their values.

    They are attributes of the part, and attributes of its settings (its config).

    Args:
        part: The part.
        names: The attributes that programs read.
        own: The parameters and buffers of the model.
    """
    yield from _tensor_names(part)
    for name, value in _attributes_read(part, names):
        if is_simple(value):
            yield name, type(value), value
        elif isinstance(value, _CONTAINERS):
            yield name, type(value), Content(value, own)
        elif isinstance(value, torch.Tensor) or callable(value):
            yield name, type(value), Same(value, own)
        elif is_settings(value):
            for where, inner, held in _inner_settings(name, value, names):
                if isinstance(held, _CONTAINERS):
                    yield f"{where}.{inner}", type(held), Content(held, own)
                elif is_simple(held):
                    yield f"{where}.{inner}", type(held), held


def _attributes_read(part: nn.Module, names: Names) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a part that programs read: name and value."""
    for name, value in vars(part).items():
        ours = name.startswith("_amprewrite")
        if name == "forward" or (is_read(name, names) and not ours):
            yield name, value


def _tensor_names(part: nn.Module) -> Iterator[Flag]:
    """Yield the names of the parameters, and of the buffers, that are not None."""
    for kept in (module_parts.parameters(part), module_parts.buffers(part)):
        there = [name for name, held in kept.items() if held is not None]
        yield "", type(None), tuple(sorted(there))


def _inner_settings(
    name: str, settings: Any, names: Names
) -> Iterator[tuple[str, str, Any]]:
    """Yield the attributes that programs read of settings, and of settings inside.

    Where the reads of a class cannot be recorded (aliases), all numbers, flags and
    texts count.

    Args:
        name: Name of the settings.
        settings: The settings.
        names: The attributes that programs read.

    Yields:
        The name of the settings, the attribute, and its value; of settings inside of
        settings their attributes in turn.
    """
    below, seen = [(name, settings)], {id(settings)}
    while below:
        where, here = below.pop()
        recorded = is_recorded(cast("type[Any]", type(here)))
        for inner, held in module_parts.attributes_of(here).items():
            if is_read(inner, names) or (not recorded and is_simple(held)):
                yield where, inner, held
                if is_settings(held) and id(held) not in seen:
                    seen.add(id(held))
                    below.append((f"{where}.{inner}", held))


Settings = tuple[Any, Any]
"""Settings, a container or a tensor, as they are now and were."""


def settings_of(
    root: nn.Module, names: Names, *, by_name: bool = False
) -> list[Settings]:
    """Return the attributes of the settings of all parts, each with a copy of them.

    A write to such an attribute cannot be counted, so they are compared at each call.

    Args:
        root: The model.
        names: The attributes that programs read.
        by_name: As of :func:`structure_key`.
    """
    found, own = dict[int, Settings](), _owned(root, by_name=by_name)
    if hidden := hidden_modules(root):
        tensors = HiddenTensors(hidden.values(), own.keys())
        found[id(tensors)] = tensors, tensors
    for _, part in parts_of(root):
        for name, value in _attributes_read(part, names):
            if name == "forward":
                continue
            _add_settings(found, value, own)
            if is_settings(value):
                for _, _, held in _inner_settings(name, value, names):
                    _add_settings(found, held, own)
    return _joined(found.values())


def _joined(settings: Iterable[Settings]) -> list[Settings]:
    """Return settings with the tensors among them as one, compared at once."""
    settings = [*settings]
    many = [now for now, before in settings if _is_counted(now, before)]
    others = [(now, before) for now, before in settings if not _is_counted(now, before)]
    return [*others, (marks := Marks(many), marks)] if many else others


def _is_counted(now: Any, before: object) -> bool:
    return isinstance(before, Mark) and counts_writes(now)


def _add_settings(found: dict[int, Settings], value: Any, own: Owned) -> None:
    if id(value) in own:  # until another tensor has its name
        space = own[id(value)]
        found[id(space)] = space, dict(space)
    if id(value) in found or id(value) in own:
        return
    if is_settings(value):
        fields = module_parts.attributes_of(value)
        found[id(value)] = fields, dict(fields)
    elif isinstance(value, torch.Tensor):
        found[id(value)] = value, Mark(value)
    elif isinstance(value, _CONTAINERS):
        found[id(value)] = value, _copied(value)
        for part in inside(value):
            if isinstance(part, (torch.Tensor, *_CONTAINERS)):
                _add_settings(found, part, own)


def have_changed(settings: Iterable[Settings]) -> bool:
    """Return whether one of many settings is no more as it was."""
    # A loop, since each call comes here: a generator takes 0.5 us more.
    for now, before in settings:  # noqa: SIM110  # as above
        if not are_same(now, before):
            return True
    return False


def are_same(now: object, before: object) -> bool:
    """Return whether settings, a container or a tensor are unchanged."""
    if isinstance(before, Mark):
        return before.holds(cast("torch.Tensor", now))
    if isinstance(now, (HiddenTensors, Marks)):
        return now.hold()
    try:
        return bool(now == before)
    except Exception:  # noqa: BLE001  # objects were replaced, and cannot be compared
        return False


_CONTAINERS: tuple[type[Any], ...] = (list, dict, set)


def _copied(value: Any) -> Any:
    """Return a copy of a container, by the function of its type."""
    parts = inside(value)
    if isinstance(value, dict):
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return set(parts) if isinstance(value, set) else parts


class Same:
    """An object in a key, equal to itself alone; the key keeps it alive.

    A tensor is another after it was written to: a program has its values, unless it
    reads the tensor by name.

    Attributes:
        value: The object.
    """

    def __init__(self, value: object, own: Owned = _NOTHING) -> None:
        """Take the object.

        Args:
            value: The object.
            own: The tensors that programs read by name.
        """
        constant = isinstance(value, torch.Tensor) and id(value) not in own
        self.value = value
        self._mark = Mark(cast("torch.Tensor", value)) if constant else None

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same object, not written to in between."""
        if not isinstance(other, Same) or self.value is not other.value:
            return False
        if self._mark is None or other._mark is None:
            return self._mark is other._mark
        return self._mark.is_like(other._mark)

    def __hash__(self) -> int:
        """Return the identity of the object."""
        return id(self.value)


class Content:
    """The content of a container in a key: simple values, and identities of others.

    That of a container inside counts too.

    Attributes:
        parts: Simple values, and keys of others.
    """

    def __init__(
        self,
        value: Any,
        own: Owned = _NOTHING,
        around: frozenset[int] = frozenset(),
    ) -> None:
        """Copy the content.

        Args:
            value: The container.
            own: The tensors that programs read by name.
            around: Identities of the containers that hold it, which it may hold.
        """
        around |= {id(value)}
        self.parts = [_in_key(part, own, around) for part in inside(value)]

    def __eq__(self, other: object) -> bool:
        """Return whether the contents are equal."""
        return isinstance(other, Content) and self.parts == other.parts

    def __hash__(self) -> int:
        """Return the number of parts."""
        return len(self.parts)


def _in_key(value: Any, own: Owned, around: frozenset[int]) -> object:
    if is_simple(value):
        return value
    if isinstance(value, _CONTAINERS) and id(value) not in around:
        return Content(value, own, around)
    return Same(value, own)


def _in_portable_key(value: object) -> object:
    if isinstance(value, Content):
        return tuple(map(_in_portable_key, value.parts))
    if not isinstance(value, Same):
        return value
    held = value.value
    name = type(held).__qualname__
    return (name, held.shape, held.dtype) if isinstance(held, torch.Tensor) else name


SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""Types of values that are part of a captured program, when its code reads them."""


def is_simple(value: object) -> bool:
    """Return whether a value is a constant of a program: a number, a name, a dtype."""
    if issubclass(type(value), tuple):
        return all(map(is_simple, inside(value)))
    return issubclass(type(value), SIMPLE)
