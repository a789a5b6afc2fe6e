"""Dicts that count their changes."""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol


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

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[Any, Any]:
        """Return a plain copy: a copy is not watched before it is made a part."""
        made: OrderedDict[Any, Any] = OrderedDict()
        memo[id(self)] = made
        made.update((key, copy.deepcopy(value, memo)) for key, value in self.items())
        return made

    def __reduce__(self) -> Any:
        """Pickle as a plain dict."""
        return OrderedDict, (list(self.items()),)
