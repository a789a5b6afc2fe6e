"""Promotion in NumPy 1: numbers and 0-d arrays count by value beside arrays.

Kinds have three ranks: bool, integers, and floats with complex numbers. Where no scalar
(a number or a 0-d array) ranks above every array, a scalar counts as the least dtype
that holds its value; else, and among scalars alone, all count as their dtypes.

Source: ``numpy.result_type``, Notes, NumPy 1.6 to 1.26; ``should_use_min_scalar`` and
``PyArray_LegacyResultType`` in numpy/core/src/multiarray/convert_datatype.c. Measured
on NumPy 1.26.4 where a Python int is an int64 (on Windows NumPy 1 makes it an int32).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType
from amprewrite.dtypes.systems.least import Least, choices, least_int
from amprewrite.dtypes.systems.numpy2 import NUMBERS, NumpyRules, first_common
from amprewrite.errors import PromotionError

_RANK = {"bool": 0, "int": 1, "float": 2, "complex": 2}


@dataclass(frozen=True, slots=True)
class Numpy1Rules:
    """NumPy's promotion, up to version 1.26."""

    dtypes: ClassVar[frozenset[str]] = NumpyRules.dtypes
    lattice: ClassVar[Lattice] = NumpyRules.lattice
    advice: ClassVar[str] = "cast one of them, or give a value: Operand(..., value=...)"

    def promote(self, a: str, b: str) -> str:
        """Return the first common dtype, as ``numpy.promote_types``."""
        return first_common((a, b))

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
