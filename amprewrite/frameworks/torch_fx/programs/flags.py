"""The names that a module's forward reads: its flags are among them."""

import dis
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

from torch import nn

Flag = tuple[str, type[Any], object]
"""Name, type and value of a flag."""


def flags_read(part: nn.Module) -> frozenset[str]:
    """Return the attribute names that the forward of ``part`` may read.

    Functions that are attributes of the part itself count too.
    """
    own = [held for held in vars(part).values() if isinstance(held, FunctionType)]
    names = flags_of(type(part))
    return (
        names.union(*(_reached(part, function) for function in own)) if own else names
    )


@lru_cache(maxsize=4096)
def flags_of(kind: type[nn.Module]) -> frozenset[str]:
    """Return the attribute names in the code of a forward and of its callees.

    They are those in the code of ``forward`` and of the methods that it names, of the
    functions that these are wrapped in or call, and the strings there (for
    ``getattr``). A superset of the flags: an attribute that is no flag then has its
    programs captured again when it is set, one that was missed would be ignored.
    """
    return _reached_by(kind).names


def names_read(parts: Iterable[nn.Module]) -> frozenset[str]:
    """Return the attribute names that the forwards of the user's own parts may read.

    A forward reads attributes of other parts too, as ``layer.scale`` in a loop.
    """
    users = (part for part in parts if not is_of_torch(type(part)))
    return frozenset[str]().union(*map(flags_read, users))


def functions_of(kind: type[nn.Module]) -> tuple[FunctionType, ...]:
    """Return the forward of a class and all functions that it may call.

    Functions of torch are there where they are methods of the class.
    """
    return _reached_by(kind).functions


@lru_cache(maxsize=4096)
def settings_read(kind: type[Any], names: frozenset[str]) -> frozenset[str]:
    """Return the attributes of settings that code with ``names`` may read.

    They are those names, and the names in the properties and methods that they are of.

    Args:
        kind: Class of the settings.
        names: Attribute names in the code that reads them.
    """
    return names | _closure(kind, set(names), []).names


def has_computed_names(kind: type[Any]) -> bool:
    """Return whether a class looks up attributes by code of its own, as aliases do."""
    computed = getattr(kind, "__getattr__", None) is not None
    return computed or kind.__getattribute__ is not object.__getattribute__


class Reached(NamedTuple):
    """Code that a call may run.

    Attributes:
        names: The names in it.
        functions: Its functions.
    """

    names: frozenset[str]
    functions: tuple[FunctionType, ...]


@lru_cache(maxsize=4096)
def _reached_by(kind: type[nn.Module]) -> Reached:
    return _closure(kind, {"forward"}, [])


def _reached(part: nn.Module, function: FunctionType) -> frozenset[str]:
    return _closure(type(part), set(), [function]).names


def _closure(
    kind: type[Any], methods: set[str], functions: list[FunctionType]
) -> Reached:
    """Return the names in functions, methods, and all that they may call in turn."""
    found, seen = set[str](), dict[object, FunctionType]()
    while methods or functions:
        for name in methods:
            functions += _methods(kind, name)
        methods = set()
        for function in functions.copy():
            functions.remove(function)
            if function.__code__ in seen:
                continue
            seen[function.__code__] = function
            names = set(names_in(function))
            methods |= names - found
            found |= names
            functions += _called(function, names)
    return Reached(frozenset(found), tuple(seen.values()))


def _methods(kind: type[Any], name: str) -> Iterator[FunctionType]:
    """Yield the functions of that name in a class and its bases, except torch's own."""
    for base in kind.__mro__:
        if base not in (nn.Module, object):  # not the end: mixins may come after it
            yield from _functions(vars(base).get(name))


def _called(function: FunctionType, names: set[str]) -> Iterator[FunctionType]:
    """Yield the functions of a module that a function may call, but torch's own."""
    for name in names & function.__globals__.keys():
        for called in _functions(function.__globals__[name]):
            if not is_of_torch(called):
                yield called


def is_of_torch(code: FunctionType | type[Any]) -> bool:
    """Return whether a function or class is torch's own, or of this package."""
    return str(code.__module__).partition(".")[0] in ("torch", "amprewrite")


def _functions(member: Any, depth: int = 4) -> Iterator[FunctionType]:
    """Yield the functions in a class member: in properties, and under decorators.

    Args:
        member: The member.
        depth: Number of decorators to look through.
    """
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, cached_property):
        member = cast("Any", member).func
    elif isinstance(member, (classmethod, staticmethod)):
        member = cast("Any", member).__func__
    wrapped = getattr(member, "__wrapped__", None)
    if not isinstance(member, FunctionType):
        if wrapped is not None and depth:  # by functools.lru_cache
            yield from _functions(wrapped, depth - 1)
        return
    yield member
    for cell in member.__closure__ or () if depth else ():
        try:
            yield from _functions(cell.cell_contents, depth - 1)
        except ValueError:  # a variable that is not set yet
            continue


def names_in(function: FunctionType) -> frozenset[str]:
    """Return the names in the code of a function, and the texts that may be names."""
    return _names(function.__code__)


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return frozenset(found)


def globals_in(function: FunctionType) -> frozenset[str]:
    """Return the names in the code of a function that it reads as global variables.

    All names, if it asks for ``globals()``, or for its module by ``__name__``.
    """
    found = _globals(function.__code__)
    return found if found.isdisjoint(("globals", "__name__")) else names_in(function)


@lru_cache(maxsize=4096)
def _globals(code: CodeType) -> frozenset[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    steps = dis.get_instructions(code)
    found = {str(step.argval) for step in steps if step.opname in _READS}
    return frozenset(found).union(*map(_globals, inner))


_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions of Python that read global variables; the last since Python 3.12."""


def names_set_in(function: FunctionType) -> frozenset[str]:
    """Return the attributes and global variables that the code of a function sets."""
    return _names_set(function.__code__)


@lru_cache(maxsize=4096)
def _names_set(code: CodeType) -> frozenset[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    found = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname in _SETS
    }
    return frozenset(found).union(*map(_names_set, inner))


_SETS = ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL")
"""Instructions of Python that set attributes and global variables."""
