"""One number in a format: its bits, neighbours and rounding error, exactly."""

from amprewrite.dtypes.anatomy.bits import (
    Anatomy,
    Number,
    anatomies,
    anatomy,
    float_format,
    parse_number,
)

__all__ = [
    "Anatomy",
    "Number",
    "anatomies",
    "anatomy",
    "float_format",
    "parse_number",
]
