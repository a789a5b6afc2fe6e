"""What promotion is asked about: dtypes, with rank and weakness."""

from dataclasses import dataclass
from typing import NamedTuple

from amprewrite.dtypes.formats import format_of
from amprewrite.errors import PromotionError


@dataclass(frozen=True, slots=True)
class Operand:
    """An array, a 0-d array or a number, as promotion sees it.

    Attributes:
        dtype: Its dtype name.
        ndim: Its rank; only torch distinguishes 0 from the others.
        weak: Whether it adapts to the others: a Python number, or in JAX an array
            made of such numbers only. Outside JAX only its kind matters then.
    """

    dtype: str
    ndim: int = 1
    weak: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown dtype."""
        format_of(self.dtype)

    @property
    def kind(self) -> str:
        """Kind of its dtype, with signed and unsigned integers as one."""
        kind = format_of(self.dtype).kind
        return "int" if kind == "uint" else kind

    def __str__(self) -> str:
        """Return the dtype, after what is special about it."""
        if self.weak:
            return f"weak {self.dtype}"
        return self.dtype if self.ndim else f"0-d {self.dtype}"


OperandLike = Operand | str | bool | int | float | complex


class ResultType(NamedTuple):
    """The dtype of a result, and whether it is weak (only ever in JAX)."""

    dtype: str
    weak: bool


_NUMBERS: dict[type, Operand] = {
    bool: Operand("bool", ndim=0, weak=True),
    int: Operand("int64", ndim=0, weak=True),
    float: Operand("float64", ndim=0, weak=True),
    complex: Operand("complex128", ndim=0, weak=True),
}
"""Python numbers, by exact type: numpy.float64 is a float, but a strong one."""


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
        return _NUMBERS[type(value)]
    found = f"{type(value).__module__}.{type(value).__qualname__}"
    raise PromotionError(
        f"operand {value!r}: found {found}; want a dtype name, a Python bool, int, "
        "float or complex, or an Operand, which says what is strong, weak or 0-d"
    )
