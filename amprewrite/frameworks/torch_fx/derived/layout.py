"""Classes that objects of another class can be given."""

from typing import Any


def class_before(role: type[Any], kind: type[Any], body: dict[str, Any]) -> Any:
    """Return a class of ``role`` and ``kind`` that an object of ``kind`` can be given.

    Python gives an object a class that lays objects out alike, and takes the layout
    from the first base. That of a class with a first base without fields (``class
    Encoder(ABC, nn.Module)``) differs from that of ``nn.Module``. Then ``kind`` is made
    the first base, and the order in which methods are looked up is kept.

    Args:
        role: The class with the methods that come first.
        kind: The class of the objects.
        body: The namespace of the class.
    """
    meta: Any = type(kind)
    made: Any = meta(kind.__name__, (role, kind), body)
    if _can_be_given(made, kind):
        return made
    order: tuple[type[Any], ...] = made.__mro__[1:]

    def mro(cls: type[Any]) -> list[type[Any]]:
        """Return the order of lookup; that of a derived class follows from it."""
        return [cls, *order] if cls.__bases__ == (kind, role) else type.mro(cls)

    in_order: Any = type("InOrder", (meta,), {"mro": mro})
    return in_order(kind.__name__, (kind, role), body)


def _can_be_given(made: type[Any], kind: type[Any]) -> bool:
    """Return whether an object of class ``kind`` can be made one of class ``made``."""
    try:
        object.__new__(kind).__class__ = made
    except TypeError:
        return False
    return True
