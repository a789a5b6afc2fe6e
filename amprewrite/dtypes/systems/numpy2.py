"""Promotion in NumPy 2: the first dtype that every operand may safely become.

A Python number is weak: only its kind counts, not its value.

Source: NEP 50 (Promotion rules for Python scalars); measured on NumPy 2.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType

_SAFE: dict[str, tuple[str, ...]] = {
    "bool": ("uint8", "int8"),
    "uint8": ("uint16", "int16", "float16"),
    "int8": ("int16", "float16"),
    "uint16": ("uint32", "int32", "float32"),
    "int16": ("int32", "float32"),
    "uint32": ("uint64", "int64", "float64"),
    "int32": ("int64", "float64"),
    "uint64": ("float64",),  # not lossless, but safe in NumPy's sense
    "int64": ("float64",),
    "float16": ("float32",),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex64": ("complex128",),
    "complex128": (),
}
"""The next dtypes to which a cast is safe; ordered by kind, then by size.

The order decides where there is no least common dtype: uint8 and int8 safely become
int16 and float16, and neither of these becomes the other. It is applied to all operands
at once, so that uint8, int8 and float16 give float16, not float32.
"""

_LATTICE = Lattice(_SAFE)

NUMBERS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
"""Kinds of Python numbers from low to high, and the dtype that NumPy gives to each."""

_ORDER = list(NUMBERS).index


def first_common(dtypes: Sequence[str]) -> str:
    """Return the first dtype that all of ``dtypes`` may safely become."""
    common = _LATTICE.common(dtypes)
    return next(dtype for dtype in _SAFE if dtype in common)


@dataclass(frozen=True, slots=True)
class NumpyRules:
    """NumPy's promotion, from version 2."""

    # Without bfloat16 and float8: ml_dtypes adds them, but in NumPy 2.4 they do not
    # promote dependably (bfloat16 with float16 or int16 raises).
    dtypes: ClassVar[frozenset[str]] = frozenset(_SAFE)
    lattice: ClassVar[Lattice] = _LATTICE
    advice: ClassVar[str] = "cast one of them"

    def promote(self, a: str, b: str) -> str:
        """Return the first common dtype, as ``numpy.promote_types``."""
        return first_common((a, b))

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the result type of ``operands``; it is never weak."""
        strong = [x for x in operands if not x.weak]
        number = max((x.kind for x in operands if x.weak), key=_ORDER, default="bool")
        if not strong:
            return ResultType(NUMBERS[number], weak=False)
        dtype = first_common([x.dtype for x in strong])
        host = Operand(dtype).kind
        if (number, host) == ("complex", "float"):
            dtype = first_common((dtype, "complex64"))  # the float's precision is kept
        elif _ORDER(number) > _ORDER(host):
            dtype = first_common((dtype, NUMBERS[number]))
        return ResultType(dtype, weak=False)
