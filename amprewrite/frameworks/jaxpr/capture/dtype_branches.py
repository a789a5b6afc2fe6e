"""Find functions that decide by a dtype: in low precision they may cast more.

``x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x`` casts nothing in a trace in
float32. So the bytecode of the user's functions is read, which needs no source: those
that made equations, those that the traced function holds, and, of either, those inside
of them and those of their module that they name.
"""

import dis
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from amprewrite.user_code import is_users

# A value that a function holds may be anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

DTYPES = frozenset(
    (
        *("dtype", "dtypes", "result_type", "promote_types", "finfo", "itemsize"),
        *("issubdtype", "isdtype", "can_cast"),
    )
)
"""Names by which a function reads a dtype or asks about one."""

_LEAVES = ("POP_TOP", "RETURN_VALUE")
"""Instructions that end a statement; so does each that stores."""


def branches(codes: Iterable[CodeType], function: Any) -> bool:
    """Return whether any of the functions, or one that it names, decides by a dtype.

    Args:
        codes: The user's functions that made equations.
        function: The traced function.
    """
    waiting, seen = [*codes, *_held_by(function)], set[int]()
    while waiting:
        code = waiting.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        if decides(code):
            return True
        waiting += _named_by(code)
    return False


@lru_cache(maxsize=4096)
def decides(code: CodeType) -> bool:
    """Return whether a function itself decides by a dtype; raising does not count.

    A value that is made from a dtype counts as one, and so does a variable that holds
    it; a comparison that is returned is for the caller to decide by.
    """
    if DTYPES.isdisjoint((*code.co_names, *code.co_varnames, *code.co_freevars)):
        return False
    steps = list(dis.get_instructions(code))
    reading = _Reading()
    return any(reading.decides(steps, index) for index in range(len(steps)))


@dataclass
class _Reading:
    """Reader of instructions: the names and the values that come from dtypes so far.

    Attributes:
        held: Names of values that are made from dtypes.
        reads: Whether the statement has read one.
        compares: Whether it has compared anything.
    """

    held: set[Any] = field(default_factory=lambda: set[Any](DTYPES))
    reads: bool = False
    compares: bool = False

    def decides(self, steps: Sequence[dis.Instruction], index: int) -> bool:
        """Read an instruction, and return whether it decides by a dtype."""
        step, before = steps[index], steps[max(index - 1, 0)]
        name = step.opname
        if name.startswith("LOAD_"):
            self.reads |= not self.held.isdisjoint(_names(step))
        elif name.startswith("STORE_") or name in _LEAVES:
            if self.reads and name.startswith("STORE_"):
                self.held.update(_names(step))
            found = name == "RETURN_VALUE" and self.reads and self.compares
            self.reads = self.compares = False
            return found
        elif name in ("COMPARE_OP", "CONTAINS_OP", "IS_OP"):
            self.compares = True
            self.reads &= name != "IS_OP" or before.argval is not None
        elif name == "BINARY_SUBSCR":
            return self.reads and before.argval in self.held  # a table by dtypes
        elif "JUMP" in name and "IF" in name and "NONE" not in name:
            found = self.reads and not _raises(steps[index + 1 :])
            self.reads = self.compares = False
            return found
        return False


def _names(step: dis.Instruction) -> tuple[Any, ...]:
    """Return the names that an instruction loads or stores; some have two."""
    found: Any = step.argval
    return tuple(found) if type(found) is tuple else (found,)


def _raises(rest: Iterable[dis.Instruction]) -> bool:
    """Return whether the instructions up to the next jump raise an error."""
    for step in rest:
        if step.opname in ("RAISE_VARARGS", "LOAD_ASSERTION_ERROR"):
            return True
        if step.opname.startswith("RETURN_") or "JUMP" in step.opname:
            return False
    return False


def _named_by(code: CodeType) -> Iterator[CodeType]:
    """Yield the user's functions inside of one, and those that it names."""
    yield from _inside(code)
    module = _module_of(code.co_filename)
    if module is None:
        return
    names = {*code.co_names, *code.co_freevars}
    held = vars(module)
    owners: list[Any] = [held[name] for name in names if name in held]
    yield from _codes(owners)
    for owner in owners:
        if isinstance(owner, type):
            yield from _codes(vars(owner).get(n) for n in ("__call__", "__init__"))
    modules = [owner for owner in owners if isinstance(owner, ModuleType)]
    for owner in (*modules, *_classes(module)):
        yield from _codes(vars(owner).get(name) for name in names)
    around = _around(module, code)
    if around is not None:
        yield from (c for c in _inside(around) if c.co_name in names)


def _held_by(function: Any) -> Iterator[CodeType]:
    """Yield the user's functions that a function is, wraps, closes over or names."""
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        held = waiting.pop()
        if isinstance(held, (list, tuple)):
            waiting += held
            continue
        if id(held) in seen or not callable(held) or isinstance(held, type):
            continue
        seen.add(id(held))
        yield from _codes([held])
        waiting += _parts(held)


def _parts(held: Any) -> list[Any]:
    """Return the callables that a callable holds or names."""
    if isinstance(held, partial):
        return [held.func, *held.args, *held.keywords.values()]
    if isinstance(held, MethodType):
        return [held.__func__, held.__self__]
    if hasattr(held, "__wrapped__"):
        return [held.__wrapped__]
    if not isinstance(held, FunctionType):
        own = getattr(held, "__dict__", {})
        return [type(held).__call__, *own.values()]
    if not is_users(held.__code__.co_filename):
        return []
    cells = [c for c in held.__closure__ or () if c != _EMPTY]
    names = (name for name in held.__code__.co_names if name in held.__globals__)
    named = (held.__globals__[name] for name in names)
    return [*(c.cell_contents for c in cells), *(held.__defaults__ or ()), *named]


_EMPTY = CellType()
"""A variable that is not assigned yet."""


def _inside(code: CodeType) -> Iterator[CodeType]:
    return (held for held in code.co_consts if isinstance(held, CodeType))


def _codes(values: Iterable[object]) -> Iterator[CodeType]:
    """Yield the code of the user's functions among ``values``, also when wrapped."""
    for value in values:
        held = getattr(value, "__wrapped__", value)  # class methods and static ones too
        held = held.fget if isinstance(held, property) else held
        if isinstance(held, FunctionType) and is_users(held.__code__.co_filename):
            yield held.__code__


def _classes(module: ModuleType) -> list[type]:
    """Return the classes that a module defines."""
    found = (held for held in vars(module).values() if isinstance(held, type))
    return [held for held in found if held.__module__ == module.__name__]


def _around(module: ModuleType, code: CodeType) -> CodeType | None:
    """Return the function that a local function is defined in."""
    outer, _, last = code.co_qualname.rpartition(".<locals>.")
    held: Any = module
    for name in outer.split(".") if last and outer and "<" not in outer else ():
        held = getattr(held, "__dict__", {}).get(name)
    return next(_codes([held]), None)


_modules: dict[str, str] = {}
"""Name of each module that was loaded, by its file."""

_counted = [0]
"""Number of modules when they were looked through last."""


def _module_of(file: str) -> ModuleType | None:
    """Return the loaded module of a file; None for code that was typed or executed."""
    if file not in _modules and _counted[0] != len(sys.modules):
        _counted[0] = len(sys.modules)
        for name, module in list(sys.modules.items()):
            _modules.setdefault(getattr(module, "__file__", None) or name, name)
    return sys.modules.get(_modules.get(file, ""))
