"""Operands of a promotion: a dtype with rank, weakness and value."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from amprewrite.dtypes.formats import format_of
from amprewrite.errors import PromotionError


@dataclass(frozen=True, slots=True)
class Operand:
    """An array, a 0-d array or a number, reduced to the facts that promotion uses.

    Attributes:
        dtype: Its dtype name.
        ndim: Its rank; only torch distinguishes 0 from the others.
        weak: Whether it adapts to the others: a Python number, or in JAX an array
            made of such numbers only. Outside JAX only its kind matters then.
        value: The value of a 0-d array or a number; only NumPy 1 asks for it. None
            where it is not known.

    Raises:
        PromotionError: The dtype is unknown or cannot hold the value, or an array of
            a higher rank has one.
    """

    dtype: str
    ndim: int = 1
    weak: bool = False
    value: bool | int | float | complex | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown dtype, and a value that the operand cannot have."""
        format_of(self.dtype)
        if self.value is not None:
            _check_value(self, self.value)

    @property
    def kind(self) -> str:
        """Kind of its dtype, with signed and unsigned integers as one."""
        kind = format_of(self.dtype).kind
        return "int" if kind == "uint" else kind

    def __str__(self) -> str:
        """Return the dtype, with a prefix if it is weak or 0-d."""
        if self.weak:
            return f"weak {self.dtype}"
        return self.dtype if self.ndim else f"0-d {self.dtype}"


OperandLike = Operand | str | bool | int | float | complex


class ResultType(NamedTuple):
    """The dtype of a result, and whether it is weak (only ever in JAX)."""

    dtype: str
    weak: bool


def _check_value(operand: Operand, value: complex) -> None:
    where = f"operand {operand}: found value {value!r}"
    if operand.ndim:
        raise PromotionError(f"{where} and rank {operand.ndim}; want ndim=0 with it")
    kinds = [kind for kind, one in _VALUES.items() if isinstance(value, one)]
    if not kinds:
        raise PromotionError(f"{where}; want a Python number, as item() gives it")
    rank, own = _ORDER(kinds[0]), _ORDER(operand.kind)
    if rank > own or (operand.weak and rank < own):
        raise PromotionError(f"{where} of kind {kinds[0]}; want kind {operand.kind}")
    target = format_of(operand.dtype)
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    finite = [x for x in parts if isinstance(x, int) or math.isfinite(x)]
    if not operand.weak and not all(target.min <= x <= target.max for x in finite):
        raise PromotionError(f"{where}; want one that {operand.dtype} holds")


_VALUES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
}
"""Kinds of values from low to high; the first type that a value fits is its kind."""

_ORDER = list(_VALUES).index

_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
"""Dtypes of Python numbers, by exact type; numpy.float64 is a strong float."""


def as_operand(value: OperandLike) -> Operand:
    """Return ``value`` as an operand; a name is an array of that dtype.

    Raises:
        PromotionError: If it is neither an operand, nor a dtype name, nor a number.
    """
    if isinstance(value, Operand):
        return value
    if isinstance(value, str):
        return Operand(value)
    if type(value) in _NUMBERS:
        return Operand(_NUMBERS[type(value)], ndim=0, weak=True, value=value)
    found = f"{type(value).__module__}.{type(value).__qualname__}"
    raise PromotionError(
        f"operand {value!r}: found {found}; want a dtype name, a Python bool, int, "
        "float or complex, or an Operand, which can be weak or 0-d"
    )
