"""Attributes of a model: find those that its forward writes, and restore them.

An attribute is written if it is another object, or if a container or an object in it
has other contents. Generators of random numbers are compared by their states, the
global ones of Python and NumPy among them. Buffers are left out: a capture keeps writes
to them. Hooks that the forward registers on parts belong to the flags that say so.
"""

import random
from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Iterator, Mapping
from operator import is_, methodcaller
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.compat.module_hooks import forward_hooks
from amprewrite.frameworks.torch_fx.untouched.contents import (
    Content,
    Contents,
    global_generators,
)
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant
from amprewrite.frameworks.torch_fx.untouched.first_writes import FirstWrites
from amprewrite.frameworks.torch_fx.untouched.kinds import (
    PLAIN,
    is_same,
    space_of,
)
from amprewrite.frameworks.torch_fx.untouched.tensor_states import has_memory

_SET_UP = (vars(nn.Module()).keys() - {"_parameters"}) | {
    "_flat_weights",
    "_flat_weight_refs",
}
"""Attributes of torch's own modules that are no state of a call.

They are hooks, submodules, the mode, and the list that a recurrent layer makes of its
parameters.
"""

_is_own = methodcaller("startswith", "_amprewrite")
"""Return whether an attribute is of a converted model, and no state."""


_STATE = "_amprewrite"
"""Attribute of a converted model with the record of changes of its structure."""

_RUN = "_model"
"""Attribute of a program that dynamo captures: the model that it runs."""


class _Part:
    """The attributes of one module.

    Attributes:
        path: Its path; empty for a module outside of the submodules.
        module: The module.
        values: Its attributes by their names.
        contents: What the attributes contain, by their names.
        tensors: The tensors that are attributes, or in them, by their names.
    """

    def __init__(self, path: str, module: nn.Module, contents: Contents) -> None:
        """Record the attributes.

        Args:
            path: The path.
            module: The module.
            contents: Contents that other modules share with it.
        """
        self.path, self.module, self.kind = path, module, type(module)
        self.values = dict(self._now())
        self.contents: dict[str, list[Content]] = {}
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self._empty: dict[str, dict[Any, Any]] = {}  # a module has ten without hooks
        for name, value in self.values.items():
            if type(value) in PLAIN:
                continue
            if name in _SET_UP and type(value) in (dict, OrderedDict) and not value:
                self._empty[name] = value
                continue
            before = len(contents.tensors)
            self.contents[name] = contents.of(value)
            self.tensors[name] = contents.tensors[before:]
        if not _is_ours(self.kind):  # those of a converted part are in no attribute
            for _, tensor in self._own_tensors():
                contents.of(tensor)
        self._buffers = self._buffers_now()
        self._memory = [
            (name, tensor, tensor.untyped_storage())
            for name, tensor in self._own_tensors()
            if tensor.layout is torch.strided
        ]

    def _own_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters(recurse=False)
        yield from self.module.named_buffers(recurse=False)

    def _buffers_now(self) -> dict[str, torch.Tensor]:
        return dict(self.module.named_buffers(recurse=False, remove_duplicate=False))

    def replaced(self, several: Collection[int], assigned: Container[str]) -> list[str]:
        """Return the names of buffers that are other tensors, are new or are gone.

        Those that a capture keeps are left out.

        Args:
            several: Identities of the tensors with several names.
            assigned: Names of buffers that were set as attributes of the model.
        """
        before, now = self._buffers, self._buffers_now()

        def is_kept(name: str) -> bool:
            old, new = before.get(name), now.get(name)
            if old is None or new is None or old is new:
                return old is new
            if self.path != "self" or name not in assigned or id(old) in several:
                return False
            if None in module_parts.buffers(self.module).values():
                return False
            like = (old.shape, old.dtype) == (new.shape, new.dtype)
            return like and not any(new is other for other in before.values())

        return [name for name in before | now if not is_kept(name)]

    def moved(self) -> Iterator[str]:
        """Yield the names of parameters and buffers with other memory than before."""
        for name, tensor, memory in self._memory:
            if not has_memory(tensor, memory):
                yield name

    def _now(self) -> dict[str, Any]:
        if isinstance(self.module, torch.jit.ScriptModule):
            return {}
        if _is_ours(self.kind):  # of its attributes only the model that it runs counts
            return {n: v for n, v in vars(self.module).items() if n == _RUN}
        space = vars(self.module)
        if not any(map(_is_own, space)):
            return space
        # Of a converted model, the dicts of torch follow changes of the structure.
        return {n: v for n, v in space.items() if n not in _SET_UP | {"_parameters"}}

    def _has_same_objects(self, now: Mapping[str, Any]) -> bool:
        """Return whether the attributes are the same objects, with any contents."""
        before = self.values
        return now.keys() == before.keys() and all(
            map(is_, now.values(), before.values())
        )

    def changed(self) -> Iterator[str]:
        """Yield the names of the attributes that a forward wrote."""
        now = self._now()
        if self._has_same_objects(now):
            names = [*self.contents]
        else:
            names = [*self.values, *(now.keys() - self.values.keys())]
        for name in names:
            if name in _SET_UP or _is_own(name):
                continue
            if name not in self.values:
                if now[name] is not True or not self.path:
                    yield name
            elif (
                name not in now
                or not is_same(now[name], self.values[name])
                or any(self._changed_contents(name))
            ):
                yield name

    def _changed_contents(self, name: str) -> Iterator[bool]:
        for content in self.contents.get(name, ()):
            yield content.is_changed() and not self._named(name, content)

    def _named(self, name: str, content: Content) -> dict[str, str]:
        """Return the names that an object got, if it is the attribute itself."""
        direct = self.path and content.value is space_of(self.values[name])
        return content.constants() if direct else {}

    def constants(self, *, flags: bool) -> Iterator[Constant]:
        """Yield the constants that a forward wrote where nothing was.

        Args:
            flags: Whether new flags are among them.
        """
        path = self.path.partition(".")[2]
        for name, contents in self.contents.items():
            for content in contents:
                for inner, value in self._named(name, content).items():
                    yield Constant(path, name, inner, value)
        for name, value in self._now().items() if flags else ():
            if value is True and name not in self.values:
                yield Constant(path, "", name, value)

    def _restore_buffers(self) -> None:
        """Put the buffers of a converted part back, but for those stored low since."""
        buffers = module_parts.buffers(self.module)
        for name, tensor, _ in self._memory:
            now = buffers.get(name)
            if now is not None and now.dtype == tensor.dtype:
                buffers[name] = tensor

    def restore(self, staying: frozenset[str]) -> None:
        """Put the attributes back.

        Args:
            staying: Attributes that stay as they are now; new flags stay with them.
        """
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind
        if "_buffers" not in self.values:
            self._restore_buffers()
        now = self._now()
        if not self._has_same_objects(now):
            self._restore_objects(now, staying)
        for name, table in self._empty.items():
            if table and name not in staying:
                table.clear()
        for name, contents in self.contents.items():
            if name not in staying and not _is_own(name):
                for content in contents:
                    content.restore()

    def _restore_objects(self, now: dict[str, Any], staying: frozenset[str]) -> None:
        space = vars(self.module)
        for name in [*now]:
            if _is_own(name) or (staying and now[name] is True):
                continue
            if name not in self.values:
                del space[name]
                if (state := space.get(_STATE)) is not None:  # of a converted model
                    state.shared.watch.count()
        for name, value in self.values.items():
            if name in staying or _is_own(name):
                continue
            set_up = staying and now.get(name) is True
            if not set_up and now.get(name, space) is not value:
                space[name] = value


class Attributes:
    """Snapshot of the attributes of all modules of some models.

    Modules that the models hold outside of their submodules are among them; parts that
    are not set up yet are not.

    Attributes:
        tensors: Tensors that are attributes, or in them.
    """

    def __init__(self, *models: nn.Module) -> None:
        """Record them.

        Args:
            models: The models.
        """
        contents, parts = Contents(), list[_Part]()
        recorded: set[int] = set()
        below = [(model, True) for model in models]
        while below:
            model, inside = below.pop()
            untyped: Any = model
            named: list[tuple[str, nn.Module]] = [*untyped.named_modules()]
            for path, module in named:
                if id(module) not in recorded and _is_set_up(module):
                    recorded.add(id(module))
                    where = "self." + path if path else "self"
                    parts.append(_Part(where if inside else "", module, contents))
            hidden = [m for m in contents.modules if id(m) not in recorded]
            below += [(module, False) for module in hidden if _is_set_up(module)]
        self._parts, self.tensors = parts, contents.tensors
        hooks = (table for p in parts for table in forward_hooks(p.module).values())
        self._hooks = frozenset(key for table in hooks for key in table)
        self._generators = global_generators()
        names: Counter[int] = Counter()
        for model in models:
            buffers = [*model.named_buffers(remove_duplicate=False)]
            names.update(id(buffer) for _, buffer in buffers)
        self._several = {tensor for tensor, count in names.items() if count > 1}

    def drawn(self) -> list[str]:
        """Return the names of the global generators that were drawn from."""
        states = self._generators.items()
        return [name for name, state in states if state.is_changed()]

    def drawn_inside(self) -> list[str]:
        """Return the names of the ``random.Random`` objects that were drawn from."""
        return [
            _name(part, name)
            for part in self._parts
            for name, contents in part.contents.items()
            for content in contents
            if isinstance(content.value, random.Random) and content.is_changed()
        ]

    def names(self, assigned: Container[str] = ()) -> list[str]:
        """Return the names of changed attributes, as the model's code spells them.

        Left out are writes that a capture keeps: torch.export (2.11 to 2.15) copies a
        tensor that is set as a buffer of the model itself into the one before; it
        loses those that are set in parts, or have other extents; of a buffer with
        several names it keeps one value; and if a buffer is None it writes to the
        memory of another input.

        Args:
            assigned: Names of buffers that were set as attributes of the model.
        """
        return [
            _name(part, name)
            for part in self._parts
            for name in (
                *part.changed(),
                *part.moved(),
                *part.replaced(self._several, assigned),
            )
        ]

    def constants(self) -> list[Constant]:
        """Return the constants that the forward wrote where nothing was.

        Flags that say that hooks were registered are left out: the program has the
        hooks.
        """
        flags = not self._has_set_up()
        return [c for p in self._parts if p.path for c in p.constants(flags=flags)]

    def written(self, writes: FirstWrites) -> list[str]:
        """Return the names of attributes with tensors that were written to in place.

        Parameters and buffers are left out.

        Args:
            writes: The writes.
        """
        return [
            _name(part, name)
            for part in self._parts
            for name, tensors in part.tensors.items()
            if name not in _SET_UP and name != "_parameters"
            if any(map(writes.has_written, tensors))
        ]

    def restore(self, *, hooks: bool = True) -> None:
        """Put all back.

        Args:
            hooks: Whether to remove the hooks that were registered meanwhile, with the
                flags that were set. Otherwise both stay, where there are both.
        """
        for generator in self._generators.values():
            generator.restore()
        stay = not hooks and self._has_set_up()
        for part in self._parts:
            part.restore(_HOOKS if stay else frozenset())

    def _has_set_up(self) -> bool:
        """Return whether the forward registered hooks, and set a flag that says so."""
        parts = (part.module for part in self._parts)
        hooks = (table for part in parts for table in forward_hooks(part).values())
        if not any(table.keys() - self._hooks for table in hooks):
            return False
        return any(
            now is True and part.values.get(name) is not True
            for part in self._parts
            for name, now in vars(part.module).items()
        )


_HOOKS = frozenset(
    f"_forward_{when}hooks{how}"
    for when in ("", "pre_")
    for how in ("", "_with_kwargs", "_always_called")
)
"""Attributes that hold forward hooks and their options."""


def _name(part: _Part, name: str) -> str:
    return f"{part.path or type(part.module).__name__}.{name}"


def _is_ours(kind: type[nn.Module]) -> bool:
    """Return whether a class is this package's: its attributes are no user's."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_set_up(module: nn.Module) -> bool:
    return not any(map(is_lazy, module.parameters(recurse=False)))
