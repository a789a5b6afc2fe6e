"""Promotion in NumPy 2, by dtypes alone, and in NumPy 1, where values count."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, NamedTuple

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType
from amprewrite.errors import PromotionError

# Promotion in NumPy 2: the first dtype that every operand may safely become.
#
# A Python number is weak: only its kind counts, not its value.
#
# Source: NEP 50 (Promotion rules for Python scalars); measured on NumPy 2.4.

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


# The least dtype that represents a value, as ``numpy.min_scalar_type`` has it.
#
# Source: ``numpy.min_scalar_type``; ``min_scalar_type_num`` in
# numpy/core/src/multiarray/convert_datatype.c. Measured on NumPy 1.26.4 and 2.4.

_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_SIGNED = ("int8", "int16", "int32", "int64")

_HALF, _SINGLE = 65000.0, 3.4e38
"""NumPy's bounds on the magnitude of a float16 and a float32; not the formats' own."""


class Least(NamedTuple):
    """The least dtype that holds a value.

    Attributes:
        dtype: Its name.
        either: Whether it is unsigned and the signed dtype of its width does as well.
    """

    dtype: str
    either: bool = False

    @property
    def signed(self) -> str:
        """The signed dtype where that does as well, else ``dtype``."""
        return self.dtype.removeprefix("u") if self.either else self.dtype


def least_of(dtype: str, value: complex) -> Least:
    """Return the least dtype of the kind of ``dtype`` that holds ``value``.

    Raises:
        PromotionError: No integer dtype holds it.
    """
    match Operand(dtype).kind:
        case "int":
            return least_int(int(value.real))
        case "float":
            return Least(_least_float(dtype, float(value.real)))
        case "complex":
            number = complex(value)
            is_small = max(abs(number.real), abs(number.imag)) < _SINGLE
            is_finite = math.isfinite(number.real) and math.isfinite(number.imag)
            return Least("complex64" if is_small and is_finite else dtype)
        case _:
            return Least("bool")


def least_int(value: int) -> Least:
    """Return the least dtype that holds an integer.

    Raises:
        PromotionError: None does.
    """
    for unsigned, signed in zip(_UNSIGNED, _SIGNED, strict=True):
        if 0 <= value <= format_of(unsigned).max:
            return Least(unsigned, either=value <= format_of(signed).max)
        if format_of(signed).min <= value < 0:
            return Least(signed)
    raise PromotionError(f"no integer dtype holds {value}: it is an object")


def _least_float(dtype: str, value: float) -> str:
    if dtype == "float16":
        return dtype
    if dtype == "float32" and math.isfinite(value):
        (value,) = struct.unpack("f", struct.pack("f", value))  # as the array holds it
    if not math.isfinite(value) or abs(value) < _HALF:
        return "float16"
    return "float32" if abs(value) < _SINGLE else dtype


def choices(operand: Operand) -> set[Least]:
    """Return the least dtypes of a scalar; several if its value is unknown."""
    if operand.value is not None:
        return {least_of(operand.dtype, operand.value)}
    return {least_of(operand.dtype, x) for x in _samples(operand.dtype)}


def _samples(dtype: str) -> list[float]:
    """Return sample values of ``dtype`` that cover every least dtype it can have."""
    entry = format_of(dtype)
    edges: list[float] = [0, _HALF, entry.max]
    if entry.kind in ("int", "uint"):
        known = [format_of(name) for name in (*_SIGNED, *_UNSIGNED)]
        edges = [end for each in known for end in (each.min, each.max)]
    return [x for x in edges if entry.min <= x <= entry.max]


# Promotion in NumPy 1: numbers and 0-d arrays count by value beside arrays.
#
# Kinds have three ranks: bool, integers, and floats with complex numbers. Where no
# scalar (a number or a 0-d array) ranks above every array, a scalar counts as the least
# dtype that holds its value; else, and among scalars alone, all count as their dtypes.
#
# Source: ``numpy.result_type``, Notes, NumPy 1.6 to 1.26; ``should_use_min_scalar`` and
# ``PyArray_LegacyResultType`` in numpy/core/src/multiarray/convert_datatype.c. Measured
# on NumPy 1.26.4 where a Python int is an int64 (on Windows NumPy 1 makes it an int32).

_RANK = {"bool": 0, "int": 1, "float": 2, "complex": 2}


@dataclass(frozen=True, slots=True)
class Numpy1Rules(NumpyRules):
    """NumPy's promotion, up to version 1.26."""

    advice: ClassVar[str] = "cast one of them, or give a value: Operand(..., value=...)"

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the result type of ``operands``; it is never weak.

        Raises:
            PromotionError: An unknown value decides, or no dtype represents a value.
        """
        given = [as_array(x) for x in operands]
        if not counts_values(given):
            return ResultType(first_common([x.dtype for x in given]), weak=False)
        # In turn, not at once: the order of operands can decide, as it does in NumPy 1.
        first, *rest = (counted(x) for x in given)
        found = first
        for more in rest:
            found = {_joined(a, b) for a, b in product(found, more)}
        dtypes = sorted({x.dtype for x in found}, key=lambda x: format_of(x).bits)
        if len(dtypes) > 1:
            unknown = (str(x) for x in given if not x.ndim and x.value is None)
            raise PromotionError(
                f"{' or '.join(dtypes)}, which the unknown value of "
                f"{' and '.join(dict.fromkeys(unknown))} decides"
            )
        return ResultType(dtypes[0], weak=False)


def as_array(operand: Operand) -> Operand:
    """Return an operand as the array that NumPy makes of it; a number is 0-d.

    A number of unknown value is assumed to fit the dtype of its kind.

    Raises:
        PromotionError: No dtype holds the number.
    """
    if not operand.weak:
        return operand
    dtype = NUMBERS[operand.kind]
    if dtype == "int64" and operand.value is not None:
        is_large = least_int(int(operand.value.real)) == Least("uint64")
        dtype = "uint64" if is_large else dtype
    return replace(operand, dtype=dtype, ndim=0, weak=False)


def counts_values(arrays: Sequence[Operand]) -> bool:
    """Return whether values count: 0-d arrays beside others of their rank or above."""
    scalars = [_RANK[x.kind] for x in arrays if not x.ndim]
    others = [_RANK[x.kind] for x in arrays if x.ndim]
    return bool(scalars and others) and max(others) >= max(scalars)


def counted(array: Operand) -> set[Least]:
    """Return the dtypes that an array may count as where values count."""
    return {Least(array.dtype)} if array.ndim else choices(array)


def _joined(a: Least, b: Least) -> Least:
    """Return the join; beside a signed dtype or a float, an ambiguous one is signed."""
    if a.either and b.either:
        return Least(first_common((a.dtype, b.dtype)), either=True)
    first = a.dtype if _is_unsigned(b.dtype) else a.signed
    second = b.dtype if _is_unsigned(a.dtype) else b.signed
    return Least(first_common((first, second)))


def _is_unsigned(dtype: str) -> bool:
    return format_of(dtype).kind in ("bool", "uint")
