"""Converted modules as instances of a class derived from the model's.

Fields, other methods and checks of the type go on as before; only a call differs.
"""

# What a module holds is anything: it is unknown to a type checker.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

RUNNER = "amprewrite_runner"
"""The field that holds what runs a converted module."""


PLAIN = "amprewrite_plain"
"""The attribute of a derived class that holds the class of the model."""


def with_class(model: Any, kind: Any) -> Any:
    """Return ``model`` as another class, holding the same, without what runs it."""
    return made_of(kind, vars(model))


def made_of(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return an instance of ``kind`` that holds ``fields``, not initialised.

    What runs a converted module is left out where ``kind`` is no class of those.
    """
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        if name != RUNNER or PLAIN in vars(kind):
            object.__setattr__(made, name, value)
    return made


def plain_class(kind: Any) -> Any:
    """Return the class of the model of a class of converted ones; others as they are.

    A class that a user derived from that of a converted model counts as that.
    """
    return getattr(kind, PLAIN, kind)


@functools.cache
def metaclass(meta: Any) -> Any:
    """Return the class of classes of converted modules, for models of class ``meta``.

    Their names are those of the models', so that modules print alike; how the class
    itself prints tells them apart, in JAX's errors where both meet in one tree.
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
        converted_function_of: Gives what runs a module, which has ``plan`` and
            ``casts``.
        fields: Names that the model has taken for itself.
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
    """Return the part of a class body by which converted modules are copied.

    A class that is made when a model is converted has no name to be pickled by.

    Args:
        convert: Converts a model by a request; a function with a name.
        conversion_of: Gives what runs a converted module.
        original: Gives the plain module.
    """

    def reduce_to(self: Any) -> Any:
        conversion = conversion_of(self)
        if conversion is None:  # made by a class method
            return _as_class_of, (plain_class(type(self)), dict(vars(self)))
        return convert, (original(self), conversion.to_pickle())

    def deep(self: Any, memo: dict[int, Any]) -> Any:
        conversion = conversion_of(self)
        copied = copy.deepcopy(original(self), memo)
        return copied if conversion is None else conversion.converted(copied)

    def shallow(self: Any) -> Any:
        return made_of(type(self), vars(self))

    return {"__reduce__": reduce_to, "__deepcopy__": deep, "__copy__": shallow}


def _as_class_of(kind: Any, fields: Mapping[str, Any]) -> Any:
    return made_of(kind, fields)


def _of_converted_function(
    converted_function_of: Callable[[Any], Any], name: str, model: Any
) -> Any:
    return getattr(converted_function_of(model), name)
