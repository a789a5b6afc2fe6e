"""Differences between promotion systems, computed from their rules.

Tests compare the rules of each system with the live library, so these are the
differences between the libraries too.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Literal, NamedTuple

from amprewrite.dtypes.operands import Operand, OperandLike, ResultType
from amprewrite.dtypes.promotion import result_type
from amprewrite.errors import PromotionError

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
"""The compared dtypes; NumPy has no bfloat16, and JAX's 32-bit mode no 64 bits."""

NUMBERS = (1, 1.0, 1j)

VALUES = (-1, 128, 32768, 2**31, 65000.0, 3.4e38)
"""Numbers for which NumPy 1 finds different least dtypes; most are a limit of one."""

Pairs = Literal["arrays", "zero_d", "numbers", "values"]


class System(NamedTuple):
    """A promotion system, with or without 64-bit dtypes."""

    name: str
    x64: bool = False

    @property
    def title(self) -> str:
        """Heading of the system in a table."""
        titles = {
            "jax": "JAX",
            "jax-strict": "strict JAX",
            "numpy": "NumPy",
            "numpy1": "NumPy 1",
        }
        mode = (", 64 bits" if self.x64 else ", 32 bits") if "jax" in self.name else ""
        return titles.get(self.name, self.name) + mode

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of ``DTYPES`` that an array of the system can have."""
        if self.name.startswith("jax") and not self.x64:
            return tuple(x for x in DTYPES if result_type(x).dtype == x)
        return tuple(x for x in DTYPES if self.result(x) is not None)

    def result(self, *operands: OperandLike) -> ResultType | None:
        """Return the result type of the operands; None if it is undefined."""
        try:
            return result_type(*operands, system=self.name, x64=self.x64)
        except PromotionError:
            return None


JAX, JAX32 = System("jax", x64=True), System("jax")
TORCH, NUMPY, NUMPY1 = System("torch"), System("numpy"), System("numpy1")


class Difference(NamedTuple):
    """Two operands and their result type in each system; None if it is undefined."""

    a: OperandLike
    b: OperandLike
    results: tuple[ResultType | None, ...]


def differences(systems: Sequence[System], pairs: Pairs) -> list[Difference]:
    """Return the pairs of operands on which ``systems`` disagree.

    Args:
        systems: The systems to compare, on the dtypes that all of them have.
        pairs: ``arrays``: each unordered pair of arrays; ``zero_d``: each array with
            each 0-d array, of value 1; ``numbers``: each array with each Python number,
            ignoring weakness, because in JAX a number makes more results weak than
            different; ``values``: each array with numbers that NumPy 1 promotes by
            value.
    """
    found: list[Difference] = []
    for a, b in _pairs(systems, pairs):
        results = tuple(system.result(a, b) for system in systems)
        seen = {x and x.dtype for x in results} if pairs == "numbers" else {*results}
        if len(seen) > 1:
            found.append(Difference(a, b, results))
    return found


def count(systems: Sequence[System], pairs: Pairs) -> int:
    """Return how many pairs :func:`differences` compares."""
    return sum(1 for _ in _pairs(systems, pairs))


def _pairs(
    systems: Sequence[System], pairs: Pairs
) -> Iterator[tuple[OperandLike, OperandLike]]:
    names = [x for x in DTYPES if all(x in system.dtypes for system in systems)]
    match pairs:
        case "arrays":
            return iter(combinations_with_replacement(names, 2))
        case "zero_d":
            return product(names, [Operand(x, ndim=0, value=True) for x in names])
        case "numbers":
            return product(names, NUMBERS)
        case "values":
            return product(names, VALUES)


def grouped(
    found: Sequence[Difference],
) -> dict[tuple[ResultType | None, ...], dict[OperandLike, list[OperandLike]]]:
    """Return the differences grouped by results, and within a group by ``a``."""
    groups: dict[
        tuple[ResultType | None, ...], dict[OperandLike, list[OperandLike]]
    ] = {}
    for a, b, results in found:
        groups.setdefault(results, {}).setdefault(a, []).append(b)
    return groups
