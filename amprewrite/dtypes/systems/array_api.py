"""Promotion in the Python array API standard: within a kind only.

Source: data-apis.org/array-api, Type Promotion Rules, 2025.12; measured on
array-api-strict 2.6.1. Its 0-d arrays are arrays like others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType
from amprewrite.errors import PromotionError

_EDGES: dict[str, tuple[str, ...]] = {
    "bool": (),
    "uint8": ("uint16", "int16"),
    "uint16": ("uint32", "int32"),
    "uint32": ("uint64", "int64"),
    "uint64": (),  # no signed integer holds it, and a float is another kind
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("int64",),
    "int64": (),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex64": ("complex128",),
    "complex128": (),
}

_LATTICE = Lattice(_EDGES)

_HOSTS = {
    "bool": ("bool",),
    "int": ("int", "float", "complex"),
    "float": ("float", "complex"),
    "complex": ("float", "complex"),
}
"""Kinds of arrays that a Python number of each kind may be combined with."""


@dataclass(frozen=True, slots=True)
class ArrayApiRules:
    """The array API's promotion."""

    dtypes: ClassVar[frozenset[str]] = frozenset(_EDGES)
    lattice: ClassVar[Lattice] = _LATTICE
    advice: ClassVar[str] = "cast explicitly: the standard promotes within a kind only"

    def promote(self, a: str, b: str) -> str:
        """Return the join in the lattice."""
        return _LATTICE.join((a, b))

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the result type of ``operands``; it is never weak."""
        strong = [x for x in operands if not x.weak]
        if not strong:
            raise PromotionError("found Python numbers only; want at least one array")
        dtype = _LATTICE.join(x.dtype for x in strong)
        host = Operand(dtype).kind
        kinds = {x.kind for x in operands if x.weak}
        for kind in sorted(kinds):
            if host not in _HOSTS[kind]:
                raise PromotionError(f"{dtype} does not take a Python {kind}")
        if "complex" in kinds:
            dtype = _LATTICE.join((dtype, "complex64"))
        return ResultType(dtype, weak=False)
