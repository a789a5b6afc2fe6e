"""The bits of one number in a format, its neighbours, and its rounding error: exact.

Numbers are fractions of whole numbers here, so that nothing is rounded twice: a decimal
such as 0.1 is one tenth, and no float64.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from amprewrite.dtypes.formats import FORMATS, Format, did_you_mean, format_of
from amprewrite.dtypes.names import from_short_name
from amprewrite.errors import PromotionError

LARGEST_POWER = 5000
"""Largest exponent, of ten or two, of a number that is read: longer ones take long."""

ALIASES = {
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""Names of formats that are no dtypes; devices multiply the format of ``e4m3``."""

_HEX = re.compile(r"0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?\d+))?")
_DECIMAL = re.compile(r"(\d+\.?\d*|\.\d+)(?:e([+-]?\d+))?|(\d+)/(\d+)")


class Number(NamedTuple):
    """A number as it was given.

    Attributes:
        negative: Whether it has a minus sign; that of zero counts.
        size: Its absolute value; None for an infinity or NaN.
        nan: Whether it is NaN.
    """

    negative: bool
    size: Fraction | None
    nan: bool = False

    @property
    def exact(self) -> Fraction | None:
        """The number; None for an infinity or NaN."""
        if self.size is None:
            return None
        return -self.size if self.negative else self.size


def parse_number(text: str) -> Number:
    """Return the number that ``text`` spells, exactly.

    Args:
        text: A decimal (``0.15625``, ``1e-8``), a hexadecimal float (``0x1.4p-3``), a
            fraction (``1/3``), ``inf`` or ``nan``; each with a sign, or without.

    Raises:
        PromotionError: It is none of these, or has an exponent of more than 5000.
    """
    bare = text.strip().lower()
    negative = bare.startswith("-")
    bare = bare[1:] if bare[:1] in ("+", "-") else bare
    if bare in ("inf", "infinity", "nan"):
        return Number(negative, None, bare == "nan")
    if (found := _HEX.fullmatch(bare)) and (found[1] or found[2]):
        digits, power = (found[1] or "") + (found[2] or ""), int(found[3] or 0)
        _check_power(text, power)
        scale = Fraction(2) ** (power - 4 * len(found[2] or ""))
        return Number(negative, int(digits, 16) * scale)
    if (found := _DECIMAL.fullmatch(bare)) and found[4] != "0":
        _check_power(text, int(found[2] or 0))
        return Number(negative, Fraction(bare))
    msg = (
        f"{text!r} is no number; want a decimal such as 0.15625 or 1e-8, a hexadecimal "
        "float such as 0x1.4p-3, a fraction such as 1/3, inf or nan"
    )
    raise PromotionError(msg)


def _check_power(text: str, power: int) -> None:
    if abs(power) > LARGEST_POWER:
        msg = (
            f"the exponent of {text!r} is {power}; want one between -{LARGEST_POWER} "
            f"and {LARGEST_POWER}"
        )
        raise PromotionError(msg)


def float_format(name: str) -> Format:
    """Return the float format of a name: a dtype, short or long, or a usual name.

    Raises:
        PromotionError: There is none; the message names the nearest.
    """
    lower = name.lower()
    spelled = "f" + lower[2:] if re.match(r"fp\d", lower) else lower
    long = from_short_name(ALIASES.get(spelled, spelled))
    long = f"float8_{long}" if f"float8_{long}" in FORMATS else long
    floats = [known for known, found in FORMATS.items() if found.kind == "float"]
    if long in floats:
        return format_of(long)
    hint = did_you_mean(lower, [*floats, "fp16", "bf16", *ALIASES])
    msg = (
        f"unknown float format {name!r}; want a name such as 'float16', 'fp16', 'bf16' "
        f"or 'e4m3'{hint}"
    )
    raise PromotionError(msg)


@dataclass(frozen=True)
class Anatomy:
    """One number in one format.

    Attributes:
        given: The number.
        format: The format.
        code: Bits of the number that is stored, as a whole number; None where the
            format has no such number (a NaN where there is none).
    """

    given: Number
    format: Format
    code: int | None

    @property
    def sign(self) -> str:
        """The sign bit; empty of a format without one."""
        signed = not self.format.name.endswith("fnu")
        return self._bits[:1] if signed else ""

    @property
    def exponent(self) -> str:
        """Bits of the exponent."""
        start = len(self.sign)
        return self._bits[start : start + self.format.exponent_bits]

    @property
    def fraction(self) -> str:
        """Bits behind the point; the bit before it is not stored."""
        return self._bits[len(self.sign) + self.format.exponent_bits :]

    @property
    def value(self) -> float:
        """The number that is stored; exact, as float64 holds every format."""
        return value_of(self.format, self.code)

    @property
    def kind(self) -> str:
        """One of normal, subnormal, zero, infinite, nan."""
        if math.isnan(self.value):
            return "nan"
        if math.isinf(self.value):
            return "infinite"
        if self.value == 0:
            return "zero"
        small = abs(self.value) < self.format.smallest_normal
        return "subnormal" if small else "normal"

    @property
    def below(self) -> float:
        """The next smaller number of the format; NaN if there is none."""
        return self._next(-1)

    @property
    def above(self) -> float:
        """The next larger number of the format; NaN if there is none."""
        return self._next(1)

    @cached_property
    def error(self) -> Fraction | None:
        """The stored number minus the given one; None if one is not finite."""
        exact = self.given.exact
        if exact is None or not math.isfinite(self.value):
            return None
        return Fraction(self.value) - exact

    @property
    def relative_error(self) -> float | None:
        """The error over the given number; None where it has none, or is zero."""
        exact = self.given.exact
        return float(self.error / exact) if exact and self.error is not None else None

    @property
    def _bits(self) -> str:
        width = self.format.bits
        return "" if self.code is None else f"{self.code:0{width}b}"

    def _next(self, step: int) -> float:
        if not math.isfinite(self.value):
            return math.nan
        place = _place(self.format, self.value) + step
        least = _place(self.format, self.format.min)
        last = _place(self.format, self.format.max)
        if least <= place <= last:
            return _at(self.format, place)
        return math.copysign(math.inf, step) if self.format.has_infinities else math.nan


def anatomy(number: str | Number, name: str) -> Anatomy:
    """Return a number in a format, rounded to nearest, ties to even, as by a cast.

    Args:
        number: The number, see :func:`parse_number`.
        name: Name of a float format, see :func:`float_format`.

    Raises:
        PromotionError: It is no number, or there is no such format.
    """
    given = parse_number(number) if isinstance(number, str) else number
    found = float_format(name)
    return Anatomy(given, found, _encode(given, found))


def anatomies(number: str, names: Sequence[str] = ()) -> tuple[Anatomy, ...]:
    """Return a number in several formats; without names in every float format.

    Raises:
        PromotionError: It is no number, or there is no such format.
    """
    given = parse_number(number)
    every = [name for name, found in FORMATS.items() if found.kind == "float"]
    return tuple(anatomy(given, name) for name in names or every)


def _encode(given: Number, found: Format) -> int | None:
    """Return the bits of a number, rounded; None if the format has no such number."""
    unsigned = found.name.endswith("fnu")
    sign = (given.negative and not unsigned) << found.bits - 1
    if given.nan or (unsigned and (given.negative or given.size == 0)):
        return found.nan_bits if found.has_nan else None
    if given.size is None or (size := _rounded(given.size, found)) > found.max:
        match found.overflow:
            case "inf":
                ones = (1 << found.exponent_bits) - 1
                return sign | ones << found.mantissa_bits
            case "nan":
                return found.nan_bits
            case _:
                return sign | _place(found, found.max)
    place = _place(found, float(size))
    return place if not place and not found.has_negative_zero else sign | place


def _rounded(size: Fraction, found: Format) -> Fraction:
    """Return a number of the format's spacing, which may lie beyond its largest one."""
    least = math.frexp(found.smallest_normal)[1] - 1
    exponent = least if not size else max(_exponent(size), least)
    spacing = Fraction(2) ** (exponent - found.mantissa_bits)
    rounded = round(size / spacing) * spacing  # ties to even
    if found.name.endswith("fnu"):  # there is no zero to round to
        return max(rounded, Fraction(found.smallest_normal))
    return rounded


def _exponent(size: Fraction) -> int:
    """Return the exponent of the largest power of two that is not above a number."""
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


def _place(found: Format, value: float) -> int:
    """Return the place of a number of the format, counted from zero: signed.

    That of a positive number is its code: codes are in the order of the numbers.
    """
    if value == 0:
        return 0
    least = math.frexp(found.smallest_normal)[1] - 1
    exponent = max(math.frexp(value)[1] - 1, least)
    steps = int(math.ldexp(abs(value), found.mantissa_bits - exponent))
    # A normal number has the bit before the point, which adds 1 to the exponent.
    base = exponent - least + (least + found.bias - 1)
    place = (base << found.mantissa_bits) + steps
    return -place if value < 0 else place


def _at(found: Format, place: int) -> float:
    """Return the number at a place of :func:`_place`."""
    value = value_of(found, abs(place))
    return -value if place < 0 else value


def value_of(found: Format, code: int | None) -> float:
    """Return the number that bits stand for; NaN for none."""
    if code is None:
        return math.nan
    unsigned = found.name.endswith("fnu")
    sign = 0 if unsigned else code >> found.bits - 1
    rest = code if unsigned else code & (1 << found.bits - 1) - 1
    exponent, fraction = divmod(rest, 1 << found.mantissa_bits)
    if found.has_nan and code == found.nan_bits:
        return math.nan
    if found.has_infinities and exponent == (1 << found.exponent_bits) - 1:
        return math.nan if fraction else (-math.inf if sign else math.inf)
    subnormal = exponent == 0 and found.mantissa_bits > 0
    steps = fraction if subnormal else fraction + (1 << found.mantissa_bits)
    power = max(exponent, int(found.mantissa_bits > 0)) - found.bias
    value = math.ldexp(steps, power - found.mantissa_bits)
    return -value if sign else value
