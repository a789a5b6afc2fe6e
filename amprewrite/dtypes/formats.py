"""Number formats by dtype name: width, range, smallest numbers, precision.

Names are those of ml_dtypes, JAX and torch. The suffix of an 8-bit float names its
differences from IEEE formats: ``f``: no infinities; ``n``: NaN in a place of its own;
``u``: no sign; ``uz``: no negative zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Literal

from amprewrite.errors import PromotionError

Kind = Literal["bool", "int", "uint", "float", "complex"]
Overflow = Literal["inf", "nan", "saturate", "wrap"]


@dataclass(frozen=True, slots=True)
class Format:
    """One number format; a complex format is described by that of its real part.

    Attributes:
        name: The dtype name.
        kind: Kind of its values.
        bits: Width of one element, both parts of a complex one.
        exponent_bits: 0 for integers.
        mantissa_bits: Stored bits, without the leading one; 0 for integers.
        bias: Number subtracted from the stored exponent.
        max: Largest finite value; exact, so an ``int`` for integers.
        smallest_normal: Below it, significant bits are lost.
        smallest_subnormal: Distance from zero to the next value.
        overflow: Result of casting a finite number beyond ``max``.
            Formats without infinities give NaN here, as in JAX and ml_dtypes; torch
            gives ``max`` for float8_e4m3fn since 2.13 (pull request 178817): clamp
            with ``saturate`` where both must agree.
    """

    name: str
    kind: Kind
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    smallest_normal: float
    smallest_subnormal: float
    overflow: Overflow

    @property
    def min(self) -> float:
        """Least finite value; above zero for a scale format, which has no zero."""
        if self.kind in ("bool", "uint"):
            return 0
        if self.kind == "int":
            return -self.max - 1
        return self.smallest_subnormal if self.name.endswith("fnu") else -self.max

    @property
    def precision(self) -> int:
        """Number of significant bits: 24 for float32, 7 for int8."""
        is_whole = self.kind in ("bool", "int", "uint")
        return int(self.max).bit_length() if is_whole else self.mantissa_bits + 1

    @property
    def has_negative_zero(self) -> bool:
        """Whether -0.0 and 0.0 are two values."""
        has_sign = not self.name.endswith(("fnu", "uz"))
        return has_sign and self.kind in ("float", "complex")

    @property
    def has_infinities(self) -> bool:
        """Whether infinities are values of the format."""
        return self.overflow == "inf"

    @property
    def has_nan(self) -> bool:
        """Whether NaN is a value of the format."""
        return self.overflow in ("inf", "nan")

    @property
    def nan_bits(self) -> int:
        """Bits of the positive NaN, a quiet one; with formats ``uz`` the only one.

        Raises:
            PromotionError: The format has no NaN, or is complex.
        """
        if not self.has_nan or self.kind != "float":
            raise PromotionError(f"{self.name} has no NaN; see has_nan")
        ones = (1 << self.exponent_bits) - 1 << self.mantissa_bits
        if self.has_infinities:
            return ones | 1 << self.mantissa_bits - 1
        if self.name.endswith("uz"):
            return 1 << self.bits - 1
        return ones | (1 << self.mantissa_bits) - 1


def _float(  # the columns of the table below
    name: str,
    exponent_bits: int,
    mantissa_bits: int,
    bias: int,
    largest: float,
    overflow: Overflow = "inf",
) -> Format:
    """Return a float format. A format without mantissa (a scale) has no subnormals."""
    bits = int(name.partition("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz"))
    normal = 2.0 ** ((mantissa_bits > 0) - bias)
    sizes = largest, normal, normal * 2.0**-mantissa_bits
    layout = exponent_bits, mantissa_bits, bias
    return Format(name, "float", bits, *layout, *sizes, overflow)


# Sources: IEEE 754 for 16, 32 and 64 bits; OCP MX 1.0 for e2m1, e2m3, e3m2, e8m0; OCP
# FP8 for e4m3fn and e5m2; arXiv 2206.02915 for fnuz. Checked against ml_dtypes.finfo.
_FLOATS = (
    _float("float64", 11, 52, 1023, (2 - 2.0**-52) * 2.0**1023),
    _float("float32", 8, 23, 127, (2 - 2.0**-23) * 2.0**127),
    _float("bfloat16", 8, 7, 127, (2 - 2.0**-7) * 2.0**127),
    _float("float16", 5, 10, 15, 65504.0),
    _float("float8_e3m4", 3, 4, 3, 15.5),
    _float("float8_e4m3", 4, 3, 7, 240.0),
    _float("float8_e4m3b11fnuz", 4, 3, 11, 30.0, "nan"),
    _float("float8_e4m3fn", 4, 3, 7, 448.0, "nan"),
    _float("float8_e4m3fnuz", 4, 3, 8, 240.0, "nan"),
    _float("float8_e5m2", 5, 2, 15, 57344.0),
    _float("float8_e5m2fnuz", 5, 2, 16, 57344.0, "nan"),
    _float("float8_e8m0fnu", 8, 0, 127, 2.0**127, "nan"),
    _float("float6_e2m3fn", 2, 3, 1, 7.5, "saturate"),  # has no NaN either
    _float("float6_e3m2fn", 3, 2, 3, 28.0, "saturate"),
    _float("float4_e2m1fn", 2, 1, 1, 6.0, "saturate"),
)

_COMPLEX_PARTS = {
    "complex32": "float16",  # torch only
    "complex64": "float32",
    "complex128": "float64",
}

_WIDTHS = (*range(1, 9), 16, 32, 64)  # torch has all below 8, JAX 1, 2 and 4


def _whole(name: str, kind: Kind, bits: int) -> Format:
    largest = 2 ** (bits - (kind == "int")) - 1
    return Format(name, kind, bits, 0, 0, 0, largest, 1, 1, "wrap")


def _all_formats() -> dict[str, Format]:
    formats = [
        Format("bool", "bool", 8, 0, 0, 0, 1, 1, 1, "saturate"),
        *(_whole(f"int{bits}", "int", bits) for bits in _WIDTHS),
        *(_whole(f"uint{bits}", "uint", bits) for bits in _WIDTHS),
        *_FLOATS,
        *(
            replace(part, name=name, kind="complex", bits=2 * part.bits)
            for name, part_name in _COMPLEX_PARTS.items()
            for part in _FLOATS
            if part.name == part_name
        ),
    ]
    return {entry.name: entry for entry in formats}


FORMATS: Mapping[str, Format] = MappingProxyType(_all_formats())
"""Every format, by name."""

EIGHT_BIT_FLOATS = tuple(
    each.name
    for each in _FLOATS
    if each.name.startswith("float8_") and each.mantissa_bits
)
"""Names of the 8-bit floats; e8m0, which holds scales alone, is none."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the word nearest to ``name``, if any."""
    near = get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def format_of(name: str) -> Format:
    """Return the format called ``name``.

    Raises:
        PromotionError: If there is none; the message names the nearest.
    """
    if name in FORMATS:
        return FORMATS[name]
    raise PromotionError(
        f"unknown dtype {name!r}; want a name such as 'float32' or 'bfloat16'"
        f"{did_you_mean(name, FORMATS)}"
    )


@cache
def is_float(name: str) -> bool:
    """Return whether ``name`` is a real floating dtype.

    Any name may be asked about: a graph has dtypes that are no number formats (random
    keys, quantized integers), and those are no floats.
    """
    return name in FORMATS and FORMATS[name].kind == "float"


@cache
def itemsize(name: str) -> int:
    """Return the bytes of one element; sub-byte elements take one, unpacked.

    0 for a dtype that is no number format (a random key, a quantized integer): such
    values are never cast, so their bytes affect no choice.
    """
    return -(-FORMATS[name].bits // 8) if name in FORMATS else 0
