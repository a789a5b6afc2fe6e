"""Features of a model seen during the capture that export does not keep."""

import inspect
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from amprewrite.frameworks.torch_fx.compat import (
    compiling,
    module_parts,
    pytrees,
    settings,
    threads,
    watchers,
)
from amprewrite.frameworks.torch_fx.compat.threads import capturing
from amprewrite.frameworks.torch_fx.untouched.attributes import Attributes
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant
from amprewrite.frameworks.torch_fx.untouched.kinds import is_same, is_users, space_of
from amprewrite.frameworks.torch_fx.untouched.surroundings import Surroundings
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed

Names = frozenset[str]
"""Names of attributes that a program read while it was traced."""

ALL = "__dict__"
"""Name that stands for all: code that reads the dict of an object may read any."""

_LOOK_UP = "__getattribute__"


@contextmanager
def recording(names: set[str], kinds: Iterable[type[Any]] = ()) -> Generator[None]:
    """Record the names of the attributes that code reads of modules and of settings.

    The record does not say of which object: a program is captured again if an attribute
    of that name changes anywhere in the model. Meanwhile the classes have a function
    that looks attributes up, except while dynamo captures something (a branch of
    ``torch.cond``), because it refuses objects of such classes.

    Args:
        names: Receives the names, :data:`ALL` among them where the user's code reads a
            ``__dict__``, or where dynamo reads attributes.
        kinds: Classes of settings; ``nn.Module`` is recorded in any case.
    """
    before = {kind: vars(kind).get(_LOOK_UP) for kind in {nn.Module, *kinds}}

    def start() -> None:
        for kind in before:
            type.__setattr__(kind, _LOOK_UP, _look_up(kind, before, names))

    def stop() -> None:
        for kind, function in before.items():
            if function is None:
                type.__delattr__(kind, _LOOK_UP)
            else:
                type.__setattr__(kind, _LOOK_UP, function)

    def pause() -> None:
        names.add(ALL)
        stop()

    with capturing(), compiling.around_captures(pause, start):
        start()
        try:
            yield
        finally:
            stop()


def _look_up(kind: type[Any], before: Mapping[type[Any], Any], names: set[str]) -> Any:
    """Return a function of a class that looks attributes up, and records their names.

    It is called some thousand times in a capture, and is written to be fast.
    """
    add, caller, functions = names.add, _caller, dict[type[Any], Any]()

    def next_of(cls: type[Any]) -> Any:
        """Return the function of a class that looked attributes up before."""
        after = cls.__mro__[cls.__mro__.index(kind) :]
        own = {**{base: vars(base).get(_LOOK_UP) for base in after}, **before}
        functions[cls] = next(filter(None, map(own.get, after)))
        return functions[cls]

    def look_up(value: Any, name: str) -> Any:
        if name != ALL:
            add(name)
        elif not caller(1).f_globals.get("__name__", "").startswith(_OURS):
            add(ALL)
        kind_of_value = cast("type[Any]", type(value))
        function = functions.get(kind_of_value) or next_of(kind_of_value)
        return function(value, name)

    return look_up


_caller: Any = vars(sys)["_getframe"]  # public, but for its name

_OURS = ("torch.", "amprewrite.")
"""Beginnings of the names of Python modules that read the dict of every object."""


def is_settings(value: object) -> bool:
    """Return whether a value is an object with attributes, as a config is."""
    return _is_of_settings(type(value)) and space_of(value) is not None


def _is_of_settings(kind: type[Any]) -> bool:
    return not issubclass(kind, (nn.Module, torch.Tensor, FunctionType, type))


def kinds_of_settings(root: nn.Module) -> set[type[Any]]:
    """Return the classes of the settings of all parts whose reads can be recorded."""
    of_users, settings = dict[type[Any], bool](), dict[int, Any]()
    below = [value for part in root.modules() for value in vars(part).values()]
    while below and len(settings) < _MOST_SETTINGS:
        value = below.pop()
        kind = cast("type[Any]", type(value))
        if kind not in of_users:
            of_users[kind] = is_users(kind) and _is_of_settings(kind)
        if of_users[kind] and id(value) not in settings and is_settings(value):
            settings[id(value)] = value
            below += module_parts.attributes_of(value).values()
    return set(filter(is_recorded, map(type, settings.values())))


@cache
def is_recorded(kind: type[Any]) -> bool:
    """Return whether the reads of settings of a class can be recorded.

    They cannot where the class looks attributes up by code of its own (aliases), or
    where it takes no attribute (``types.SimpleNamespace``); and classes of Python and
    of libraries of numbers are left alone.
    """
    own = getattr(kind, "__getattr__", None) is not None
    own = own or kind.__getattribute__ is not object.__getattribute__
    fixed = kind.__flags__ & _IMMUTABLE or not kind.__flags__ & _HEAP
    return is_users(kind) and not own and not fixed


_IMMUTABLE, _HEAP = 1 << 8, 1 << 9
"""Flags of types that take no attribute, and of those that are made at run time.

Source: ``Py_TPFLAGS_IMMUTABLETYPE`` and ``Py_TPFLAGS_HEAPTYPE`` of Python's C API.
"""


_MOST_SETTINGS = 1000
"""Largest number of objects among which the settings of a model are looked for."""


MACHINERY = (
    *("torch._library.", "torch._functorch.", "torch._higher_order_ops."),
    *("torch._dynamo.", "torch._export.", "torch._subclasses."),
    "amprewrite.unit_scaling.",  # its factors are an operator
)
"""Packages with autograd functions that stand for an op which a graph keeps whole.

An example is a custom op with its own derivative; other autograd functions are inlined,
torch's own included.
"""


@dataclass
class Seen:
    """Features that a model was seen to use during the capture.

    Attributes:
        functions: Names of custom ``autograd.Function`` classes; export inlines their
            forward and drops their backward.
        checkpoints: Number of activation checkpoints; export inlines them.
        saved: Number of other regions with hooks on the tensors that autograd saves;
            export drops the hooks.
        hooks: Number of hooks on gradients; export drops them.
        written: Attributes that the forward writes, which export restores, and
            arguments whose lists, dicts or other containers it changes: export gives
            it copies of these.
        constants: Constants that the forward writes to attributes where nothing was;
            export restores them, and a call of the program writes them.
        seeds: Number of times that the forward seeds the random generator; export does
            it only while tracing.
        drawn: Python modules that the forward draws random numbers by, not torch;
            export keeps the numbers as constants.
        stored: Number of tensors that the forward stores outside of the model, and that
            are no constants; export does it once.
        unnoticed: Names of features that the release of torch does not tell a capture
            of, and that export drops.
        attributes: Names of the attributes that the forward reads, of any part.
    """

    functions: list[str] = field(default_factory=list[str])
    checkpoints: int = 0
    saved: int = 0
    hooks: int = 0
    written: list[str] = field(default_factory=list[str])
    constants: list[Constant] = field(default_factory=list[Constant])
    seeds: int = 0
    drawn: list[str] = field(default_factory=list[str])
    stored: int = 0
    unnoticed: list[str] = field(default_factory=list[str])
    attributes: Names = frozenset()

    def reason(self, *, training: bool) -> str:
        """Return the reason why the capture is not faithful; empty if it is."""
        if self.written:
            names = ", ".join(self.written)
            return f"export leaves out the writes of forward to {names}"
        if self.seeds:
            return "export does not record that forward seeds the random generator"
        if self.drawn:
            names = " and ".join(self.drawn)
            return (
                f"export keeps the numbers that forward draws by {names} as constants"
            )
        return self._dropped_gradients() if training else ""

    def _dropped_gradients(self) -> str:
        if self.functions:
            return (
                f"export drops the backward of {', '.join(sorted(set(self.functions)))}"
            )
        if self.checkpoints:
            return "export removes activation checkpoints"
        if self.saved:
            return "export drops hooks on saved tensors"
        if self.hooks:
            return "export drops hooks on gradients"
        if self.unnoticed:
            names = " and ".join(self.unnoticed)
            return f"torch {torch.__version__} does not tell a capture of {names}"
        return ""


@contextmanager
def watching(seen: Seen) -> Generator[None]:
    """Record custom autograd functions and checkpoints while the model is traced."""
    failed = watchers.failed(torch.__version__)
    seen.unnoticed = [trial.feature for trial in failed if trial.trained]

    def noted_function(kind: type) -> None:
        if watchers.is_checkpoint(kind):
            seen.checkpoints += 1
        elif not kind.__module__.startswith(MACHINERY):
            seen.functions.append(kind.__name__)

    def noted_saving(kind: type) -> None:
        if watchers.is_checkpoint(kind):
            seen.checkpoints += 1
        else:
            seen.saved += 1

    def noted_hook(tensor: torch.Tensor, hook: Any) -> Any:
        seen.hooks += 1
        return register(tensor, hook)

    def noted_seed(seed: int) -> torch.Generator:
        seen.seeds += 1
        return manual_seed(seed)

    manual_seed: Any = vars(torch)["manual_seed"]
    register: Any = vars(torch.Tensor)["register_hook"]
    with (
        settings.fork_rng([]),
        threads.replaced(torch, "manual_seed", noted_seed),
        threads.replaced(torch.random, "manual_seed", noted_seed),
        threads.replaced(torch.Tensor, "register_hook", noted_hook),
        watchers.noting_functions(noted_function),
        watchers.noting_saved_tensors(noted_saving),
    ):
        yield


@contextmanager
def watching_attributes(
    model: torch.nn.Module, seen: Seen, around: Surroundings
) -> Generator[None]:
    """Record attributes and arguments that the forward writes; restore attributes.

    Export restores them too, but neither new ones nor what is written in place.

    Args:
        model: The model.
        seen: Receives the record.
        around: The variables around the model.
    """
    before, assigned = list[tuple[Attributes, _Arguments]](), set[str]()
    kinds, recorder, reads = kinds_of_settings(model), ExitStack(), set[str]()

    def note(part: torch.nn.Module, name: str, _: object) -> None:
        if part is model:
            assigned.add(name)

    def enter(_: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        before.append((Attributes(model), _Arguments(model, args, kwargs)))
        if len(before) == 1:
            recorder.enter_context(recording(reads, kinds))

    def leave(*_: object) -> None:
        if len(before) == 1:
            recorder.close()
        then, given = before.pop()
        seen.written = [*then.names(assigned), *given.changed()]
        seen.drawn, seen.constants = then.drawn(), then.constants()
        seen.attributes |= reads

    unwatched = undisturbed(model, watched=False, around=around)
    with unwatched as outside, outside.writes.watching(traced=True), recorder:
        hooks = (
            model.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
            model.register_forward_hook(leave),
            torch_module.register_module_buffer_registration_hook(note),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        seen.written += outside.written()


class _Arguments:
    """Arguments of a call, with the structure and the leaves that they had."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Record them.

        Args:
            model: The model that is called.
            args: Positional arguments.
            kwargs: Keyword arguments.
        """
        formals = inspect.signature(model.forward).parameters.values()
        names = [
            p.name for p in formals if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        names = names[: len(args)]
        names += map(str, range(len(names), len(args)))  # of *args
        given = (*zip(names, args, strict=False), *kwargs.items())
        flatten = pytrees.pytree.tree_flatten
        self._given = [(name, value, flatten(value)) for name, value in given]

    def changed(self) -> Iterator[str]:
        """Yield the arguments that have other leaves or another structure now."""
        for name, value, (leaves, structure) in self._given:
            now, structure_now = pytrees.pytree.tree_flatten(value)
            if structure_now != structure or not all(map(is_same, now, leaves)):
                yield f"the argument {name}"
