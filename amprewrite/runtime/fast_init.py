"""A faster ``__init__`` for frozen dataclasses of which every op of a program has some.

That of a frozen dataclass calls ``object.__setattr__`` for each field, which takes four
times as long as an assignment. An op of a JAX program is held by four such objects with
sixty fields in all: making them took a seventh of the time of its plan.
"""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

Kind = TypeVar("Kind")

_INIT = """
def __init__({parameters}):
    _kind = self.__class__
    _set_attribute(self, "__class__", _open_kind)
    {assignments}
    self.__class__ = _kind
    {after}
"""
"""An object is of a class with the same slots, which is not frozen, until it is filled.

No other code has it by then. A subclass with more slots cannot do that, and says so.
"""


def fast_init(kind: type[Kind]) -> type[Kind]:
    """Return the dataclass ``kind`` with an ``__init__`` that assigns its fields.

    Args:
        kind: A dataclass that is frozen, has slots and no base, and no field with a
            default factory or by keyword alone.

    Raises:
        TypeError: It is another class.
    """
    given: Any = kind
    old, slots = given.__init__, getattr(kind, "__slots__", None)
    made = any(field.default_factory is not MISSING for field in fields(given))
    if kind.__bases__ != (object,) or slots is None or made or old.__kwdefaults__:
        msg = (
            f"found {kind.__name__}; want a frozen dataclass with slots, without a "
            f"base, without default factories and fields by keyword alone"
        )
        raise TypeError(msg)
    code = old.__code__
    parameters = code.co_varnames[: code.co_argcount]
    source = _INIT.format(
        parameters=", ".join(parameters),
        assignments="; ".join(f"self.{name} = {name}" for name in parameters[1:]),
        after="self.__post_init__()" if hasattr(kind, "__post_init__") else "",
    )
    names: dict[str, Any] = {
        "_set_attribute": object.__setattr__,
        "_open_kind": type(kind.__name__, (), {"__slots__": slots}),
    }
    exec(source, names)  # noqa: S102  # as dataclasses makes its own
    new = names["__init__"]
    new.__defaults__, new.__annotations__ = old.__defaults__, old.__annotations__
    new.__qualname__, new.__module__ = old.__qualname__, kind.__module__
    given.__init__ = new
    return kind
