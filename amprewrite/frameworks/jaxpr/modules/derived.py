"""Classes of converted modules, derived from the model's class.

Fields, other methods and type checks work as before; only calls differ.
"""

# A module may hold anything: its type is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

RUNNER = "amprewrite_runner"
"""Field of a converted module with its conversion."""


PLAIN = "amprewrite_plain"
"""The attribute of a derived class that holds the class of the model."""


def made_of(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return an instance of ``kind`` with ``fields``, without calling its ``__init__``.

    The field of the conversion is left out if ``kind`` is no converted class.
    """
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        if name != RUNNER or PLAIN in vars(kind):
            object.__setattr__(made, name, value)
    return made


def plain_class(kind: Any) -> Any:
    """Return the model's class of a converted class; other classes as they are.

    A user's class derived from a converted model's class counts as converted.
    """
    return getattr(kind, PLAIN, kind)


@functools.cache
def metaclass(meta: Any) -> Any:
    """Return the metaclass of converted modules, for models with metaclass ``meta``.

    Converted classes have the models' names, so that modules print alike; the text of
    the class itself differs, for JAX's errors about trees with both of them.
    """

    def shown(kind: Any) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        return f"<class {name!r} converted by amprewrite; see amprewrite.original>"

    return type(meta.__name__, (meta,), {"__repr__": shown})


def class_body(
    kind: Any, converted_function_of: Callable[[Any], Any], fields: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the body of the class of converted modules of class ``kind``.

    Args:
        kind: Class of the model.
        converted_function_of: Returns the runner of a module, with ``plan`` and
            ``casts``.
        fields: Names that the model uses itself.
    """
    body: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__annotations__": {},
        PLAIN: kind,
    }
    taken = set(fields)
    for name in ("plan", "casts"):
        if not hasattr(kind, name) and name not in taken:
            body[name] = property(
                functools.partial(_of_converted_function, converted_function_of, name)
            )
    return body


def copies(convert: Any, conversion_of: Any, original: Any) -> dict[str, Any]:
    """Return the part of a class body that copies and pickles converted modules.

    A class made during conversion has no importable name for pickle.

    Args:
        convert: Importable function that converts a model by a request.
        conversion_of: Returns the conversion of a converted module.
        original: Returns the plain module.
    """

    def reduce_to(self: Any) -> Any:
        conversion = conversion_of(self)
        if conversion is None:  # made by a class method
            return made_of, (plain_class(type(self)), dict(vars(self)))
        return convert, (original(self), conversion.to_pickle())

    def deep(self: Any, memo: dict[int, Any]) -> Any:
        conversion = conversion_of(self)
        copied = copy.deepcopy(original(self), memo)
        return copied if conversion is None else conversion.converted(copied)

    def shallow(self: Any) -> Any:
        return made_of(type(self), vars(self))

    return {"__reduce__": reduce_to, "__deepcopy__": deep, "__copy__": shallow}


def _of_converted_function(
    converted_function_of: Callable[[Any], Any], name: str, model: Any
) -> Any:
    return getattr(converted_function_of(model), name)
