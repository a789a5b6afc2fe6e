"""Warn about Python numbers that vary: each value is a program of its own.

A number among the arguments is a constant of the program, as it is in Python. Traced as
an array instead, ``isinstance(n, int)``, ``f"{n}"`` and ``hasattr(n, "dtype")`` would
silently change, ``x ** 3`` would use another kernel, and ``n * n / 7`` would be rounded
to float32 at each step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import leaf_name
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util

MANY = 8
"""Largest number of values of one number without a warning: a few layers or modes."""


def numbers(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, complex]]:
    """Yield the Python numbers among the arguments of a call, each with its name.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        names: Names of the positional parameters, as far as they are known.
    """
    call = args, dict(kwargs)
    if not any(map(_is_number, tree_util.tree_leaves(call))):  # paths take longer
        return
    for path, leaf in tree_util.tree_flatten_with_path(call)[0]:
        if _is_number(leaf):
            yield leaf_name(path, names), leaf


def _is_number(leaf: object) -> bool:
    """Return whether a leaf is a number, and no truth value or enumeration."""
    return type(leaf) in (int, float, complex)


class Varying:
    """Counter of the values of each number for which programs were planned."""

    def __init__(self) -> None:
        """Start with no values."""
        self.values: dict[str, set[tuple[type, complex]]] = {}

    def add(self, found: Iterable[tuple[str, complex]]) -> Iterator[str]:
        """Count the numbers of a call that was planned.

        Args:
            found: Names and values, as :func:`numbers` yields them.

        Yields:
            A warning for each number that now exceeds ``MANY`` values.
        """
        for name, value in found:
            held = self.values.setdefault(name, set())
            if len(held) > MANY or (type(value), value) in held:
                continue
            held.add((type(value), value))
            if len(held) > MANY:
                yield (
                    f"the number {name} had {len(held)} values so far, each of which "
                    f"is traced and planned as a program of its own; where only its "
                    f"value varies and Python does not decide by it, pass an array, "
                    f"jnp.asarray({name}), to have one program for all"
                )
