"""The arguments of an operator call, looked up by the operator's schema."""

from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

from amprewrite.frameworks.torch_fx.compat import operators, pytrees


class Called(Protocol):
    """A call of an operator: a node, or a call that is being traced."""

    @property
    def target(self) -> Any:
        """The operator."""
        ...

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of the call."""
        ...

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The keyword arguments of the call."""
        ...

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata about its value."""
        ...


def argument(node: Called, name: str) -> object:
    """Return the argument called ``name`` in the op's schema; its default if absent."""
    for index, formal in enumerate(operators.formals(node.target)):
        if formal.name == name:
            if index < len(node.args) and not formal.kwarg_only:
                return node.args[index]
            return node.kwargs.get(name, formal.default_value)
    return None


def tensor_slots(node: Called) -> Iterator[Any]:
    """Yield the arguments for tensors in the schema: also numbers and None."""
    for formal in operators.formals(node.target):
        kind = str(formal.type)
        if "Tensor" not in kind:
            continue
        given = argument(node, formal.name)
        if kind.startswith("List") and pytrees.is_sequence(given):
            yield from given
        else:
            yield given


def writes_first(node: Called) -> bool:
    """Return whether an op writes in place to its first argument."""
    formals = operators.formals(node.target)
    alias = formals[0].alias_info if formals else None
    return alias is not None and alias.is_write


NUMBER_TYPES = ("number", "Optional[number]", "Tensor")
"""Schema types of arguments with Python numbers that meet tensor elements.

``x + 1e-8`` is ``add.Tensor`` with a number in the place of a tensor.
"""

FILLS = ("value", "fill_value")
"""Names of arguments that fill elements, of any schema type."""


def numbers(node: Called) -> Iterator[tuple[str, float]]:
    """Yield the Python numbers among the arguments that meet tensor elements."""
    for formal in _numeric(node.target):
        found = argument(node, formal.name)
        if found == formal.default_value or isinstance(found, bool):
            continue
        if isinstance(found, (int, float)):
            yield formal.name, float(found)


@lru_cache(maxsize=1024)
def _numeric(target: Hashable) -> tuple[operators.Formal, ...]:
    """Return the arguments in the schema of ``target`` that may be such numbers."""
    return tuple(
        formal
        for formal in operators.formals(target)
        if str(formal.type) in NUMBER_TYPES or formal.name in FILLS
    )


def has_argument(node: Called, name: str) -> bool:
    """Return whether the schema of the op has an argument called ``name``."""
    return any(formal.name == name for formal in operators.formals(node.target))


def position(node: Called, name: str) -> tuple[int, bool]:
    """Return the schema position of an argument, and whether it is keyword-only."""
    for index, formal in enumerate(operators.formals(node.target)):
        if formal.name == name:
            return index, formal.kwarg_only
    msg = f"{node.target} has no argument {name!r}"
    raise LookupError(msg)
