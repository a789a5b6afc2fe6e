"""Dicts that count their changes."""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn


class Counter(Protocol):
    """Object that counts changes of a structure."""

    def count(self) -> None:
        """Count a change."""
        ...


class Watched(OrderedDict[Any, Any]):
    """Dict that counts its changes as changes of the structure.

    torch and its users write to the dicts of submodules and hooks directly.
    """

    def __init__(self, items: Mapping[Any, Any], watch: Counter) -> None:
        """Copy ``items``; later changes are counted by ``watch``."""
        super().__init__(items)
        self.watch = watch

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an item."""
        if hasattr(self, "watch"):  # not while it is filled
            self.watch.count()
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        """Delete an item."""
        self.watch.count()
        super().__delitem__(key)

    def pop(self, *given: Any, **named: Any) -> Any:
        """Remove an item and return it."""
        self.watch.count()
        return super().pop(*given, **named)

    def popitem(self, *given: Any, **named: Any) -> Any:
        """Remove the last item and return it with its key."""
        self.watch.count()
        return super().popitem(*given, **named)

    def move_to_end(self, *given: Any, **named: Any) -> None:
        """Move an item to an end."""
        self.watch.count()
        super().move_to_end(*given, **named)

    def clear(self) -> None:
        """Remove all items."""
        self.watch.count()
        super().clear()

    def copy(self) -> OrderedDict[Any, Any]:
        """Return a plain copy."""
        return OrderedDict(self)

    def __or__(self, other: Any) -> Any:
        """Return a plain dict with the items of both."""
        return OrderedDict(self) | other

    def __ror__(self, other: Any) -> Any:
        """Return a plain dict with the items of both."""
        return other | OrderedDict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[Any, Any]:
        """Return a plain copy: a copy is not watched before it is made a part."""
        made: OrderedDict[Any, Any] = OrderedDict()
        memo[id(self)] = made
        made.update((key, copy.deepcopy(value, memo)) for key, value in self.items())
        return made

    def __reduce__(self) -> Any:
        """Pickle as a plain dict."""
        return OrderedDict, (list(self.items()),)


class WatchedTensors(Watched):
    """Dict of the tensors of a module that counts which of them are None.

    Programs read tensors in it, and follow what replaces one; where there is None they
    read nothing. A copy is such a dict too, and counts nothing before it is watched:
    the copy of a program holds the same dict as the copy of the module.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an item; a tensor in the place of another is no change."""
        if key in self and (self[key] is None) == (value is None):
            plain: Any = OrderedDict
            plain.__setitem__(self, key, value)
        else:
            super().__setitem__(key, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> "WatchedTensors":
        """Return a copy that is not watched yet."""
        made = memo[id(self)] = WatchedTensors({}, _Nobody())
        made.update((key, copy.deepcopy(value, memo)) for key, value in self.items())
        return made

    def __reduce__(self) -> Any:
        """Pickle as a plain dict."""
        return dict, (list(self.items()),)


class _Nobody:
    """Counter that counts nothing."""

    def count(self) -> None:
        """Do nothing."""


def unwatched(name: str, held: Watched) -> Any:
    """Return a watched dict as torch makes it.

    Args:
        name: Attribute of the module that holds it.
        held: The dict.
    """
    return OrderedDict(held) if "hooks" in name else dict(held)


WATCHED = (
    "_modules",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Dicts of a part of a converted model that count their changes."""


def watch_dicts(part: nn.Module, watch: Counter, names: tuple[str, ...]) -> None:
    """Make dicts of a module count their changes.

    Args:
        part: The module.
        watch: Counts them.
        names: The attributes that hold the dicts.
    """
    for name in names:
        vars(part)[name] = Watched(vars(part)[name], watch)


def watch_tensors(part: nn.Module, watch: Counter, *, linked: bool) -> None:
    """Make the dicts of tensors in which there is None count their changes.

    A tensor in the place of another is followed by all programs.

    Args:
        part: The module.
        watch: Counts the changes.
        linked: Whether programs hold the dicts, so that they stay the same objects.
    """
    for name in ("_parameters", "_buffers"):
        held = vars(part)[name]
        if isinstance(held, WatchedTensors):
            held.watch = watch
        elif not linked and any(tensor is None for tensor in held.values()):
            vars(part)[name] = WatchedTensors(held, watch)
