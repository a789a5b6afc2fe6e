"""Classes that objects of another class can be given."""

from functools import cache
from typing import Any

_OWN = frozenset(("__name__", "__qualname__", "__module__", "__doc__", "__init__"))
"""Attributes that stay those of the class itself: its names and ``__init__``."""

_DERIVED_FROM = "_amprewrite_derived_from"
"""Attribute of a derived class: the other class, on which attributes are set."""

_REPLACED = "_amprewrite_replaced"
"""Attribute of such a class: replaced attributes of the other class, by name."""

_NOTHING = object()
"""Value of an attribute that is missing in the other class."""


def class_before(role: type[Any], kind: type[Any], body: dict[str, Any]) -> Any:
    """Return a class of ``role`` and ``kind`` that an object of ``kind`` can be given.

    Python gives an object a class that lays objects out alike, and takes the layout
    from the first base. That of a class with a first base without fields (``class
    Encoder(ABC, nn.Module)``) differs from that of ``nn.Module``. Then ``kind`` is made
    the first base, and the order in which methods are looked up is kept.

    What is set on the class later is set on ``kind``: it is the class of the objects
    for all who do not know the other, and programs follow the changes of that one.

    Args:
        role: The class with the methods that come first.
        kind: The class of the objects.
        body: The namespace of the class.
    """
    meta = _handing_on(type(kind))
    made: Any = meta(kind.__name__, (role, kind), body)
    if _can_be_given(made, kind):
        return _finished(made, kind)
    order: tuple[type[Any], ...] = made.__mro__[1:]

    def mro(cls: type[Any]) -> list[type[Any]]:
        """Return the order of lookup; that of a derived class follows from it."""
        return [cls, *order] if cls.__bases__ == (kind, role) else type.mro(cls)

    in_order: Any = type("InOrder", (meta,), {"mro": mro})
    return _finished(in_order(kind.__name__, (kind, role), body), kind)


@cache
def _handing_on(meta: type[Any]) -> Any:
    """Return a metaclass that sets attributes on another class.

    A class of it does so once it has an attribute that names the other.

    Args:
        meta: The class of the other class.
    """

    def set_attribute(cls: Any, name: str, value: Any) -> None:
        """Set an attribute of the other class; one of ours puts its own back."""
        own: Any = cls.__dict__
        if _DERIVED_FROM not in own or name in _OWN:
            type.__setattr__(cls, name, value)
            return
        other, replaced = own[_DERIVED_FROM], own[_REPLACED]
        if name in own:
            if value is own[name]:  # what was replaced for a time is put back
                _put_back(other, name, replaced)
                return
            replaced.setdefault(name, other.__dict__.get(name, _NOTHING))
        setattr(other, name, value)

    def delete_attribute(cls: Any, name: str) -> None:
        """Delete an attribute of the other class."""
        own: Any = cls.__dict__
        other = own.get(_DERIVED_FROM)
        if other is None or name in _OWN:
            type.__delattr__(cls, name)
        else:
            delattr(other, name)

    body = {"__setattr__": set_attribute, "__delattr__": delete_attribute}
    return type("HandingOn", (meta,), body)


def _put_back(other: Any, name: str, replaced: dict[str, Any]) -> None:
    if name not in replaced:
        return
    value = replaced.pop(name)
    if value is _NOTHING:
        delattr(other, name)
    else:
        setattr(other, name, value)


def _finished(made: Any, kind: type[Any]) -> Any:
    """Return a class that hands on from now on; Python sets some itself before."""
    setattr(made, _REPLACED, {})
    setattr(made, _DERIVED_FROM, kind)
    return made


def _can_be_given(made: type[Any], kind: type[Any]) -> bool:
    """Return whether an object of class ``kind`` can be made one of class ``made``."""
    try:
        object.__new__(kind).__class__ = made
    except TypeError:
        return False
    return True
