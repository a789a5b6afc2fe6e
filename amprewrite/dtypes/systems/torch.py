"""Promotion in torch: by category first, and only then by dtype.

Operands fall into three groups: arrays, 0-d tensors, Python numbers. A later group
changes the dtype of an earlier one only if it is of a higher kind, and then as little
as possible.

Source: c10/core/ScalarType.cpp and aten/native/TypeProperties.cpp; measured on 2.13,
eager. The meta kernels there are laxer: they let uint16 with int64 pass in an op of
three operands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType
from amprewrite.errors import PromotionError

_BARE_UNSIGNED = tuple(f"uint{bits}" for bits in (*range(1, 8), 16, 32, 64))
"""Unsigned integers that promote with floats only, not with each other."""

_ALONE = (
    *(f"int{bits}" for bits in range(1, 8)),  # an internal assert fails in torch
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)

_EDGES: dict[str, tuple[str, ...]] = {
    "bool": ("uint8", "int8"),
    "uint8": ("int16",),
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("int64",),
    "int64": ("float16", "bfloat16"),  # an integer never widens a float
    **dict.fromkeys(_BARE_UNSIGNED, ("float16", "bfloat16")),
    "float16": ("float32", "complex32"),
    "bfloat16": ("float32",),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex32": ("complex64",),
    "complex64": ("complex128",),
    "complex128": (),
    **dict.fromkeys(_ALONE, ()),
}

_LATTICE = Lattice(_EDGES)

_COMPLEX_OF = {
    "float16": "complex32",
    "bfloat16": "complex64",
    "float32": "complex64",
    "float64": "complex128",
}


def _join(a: str, b: str) -> str:
    bare = a in _BARE_UNSIGNED or b in _BARE_UNSIGNED
    if bare and "complex" in (format_of(a).kind, format_of(b).kind):
        raise PromotionError(f"{a} and {b} have no common dtype")
    return _LATTICE.join((a, b))


def _combine(higher: str, lower: str) -> str:
    """Return ``higher``, promoted to the kind of ``lower`` if that kind is higher."""
    kinds = format_of(higher).kind, format_of(lower).kind
    match kinds:
        case ("float", "complex"):
            if higher not in _COMPLEX_OF:
                raise PromotionError(f"{higher} has no complex counterpart")
            return _COMPLEX_OF[higher]
        case ("complex" | "float", _):
            return higher
        case (_, "complex"):
            return lower
        case ("bool", _) | (_, "float"):
            return _join(higher, lower)
        case _:
            return higher


@dataclass(frozen=True, slots=True)
class TorchRules:
    """Promotion rules of torch.

    Attributes:
        default_dtype: Dtype of a Python float (``torch.set_default_dtype``).
    """

    dtypes: ClassVar[frozenset[str]] = frozenset(_EDGES)
    lattice: ClassVar[Lattice] = _LATTICE
    advice: ClassVar[str] = (
        "cast one of them: float8 and uint16 to uint64 promote with almost nothing"
    )
    default_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse a default dtype that torch refuses."""
        if self.default_dtype not in _COMPLEX_OF:
            want = ", ".join(_COMPLEX_OF)
            raise PromotionError(f"default_dtype: {self.default_dtype!r}; want {want}")

    def promote(self, a: str, b: str) -> str:
        """Return the join, as ``torch.promote_types``."""
        return _join(a, b)

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the result type of ``operands``; it is never weak."""
        arrays = [x.dtype for x in operands if x.ndim and not x.weak]
        zero_d = [x.dtype for x in operands if not x.ndim and not x.weak]
        numbers = [self._number(x.kind) for x in operands if x.weak]
        # Inside a group torch joins from left to right, so uint16, uint32 and float32
        # are refused, but not float32, uint16 and uint32. Then numbers promote 0-d
        # tensors, and the result of these promotes arrays.
        groups = [reduce(_join, group) for group in (numbers, zero_d, arrays) if group]
        dtype = reduce(lambda lower, higher: _combine(higher, lower), groups)
        return ResultType(dtype, weak=False)

    def _number(self, kind: str) -> str:
        """Return the dtype of a Python number of ``kind``."""
        return {
            "bool": "bool",
            "int": "int64",
            "float": self.default_dtype,
            "complex": _COMPLEX_OF[self.default_dtype],
        }[kind]
