"""Short names of dtypes, as jaxprs spell them: ``f32[2,3]``, ``bf16``, ``i64``."""

import re

_SPECIAL = {"bool": "b1", "bfloat16": "bf16"}
_KINDS = {"float": "f", "int": "i", "uint": "u", "complex": "c"}
_LONG = {short: long for long, short in _SPECIAL.items()}
_PREFIXES = {short: long for long, short in _KINDS.items()}
_NUMBERED = re.compile(r"(float|int|uint|complex)(\d+)(?:_(\w+))?$")
_SHORT = re.compile(r"([fiuc])(\d+)(\w*)$")


def short_name(dtype: str) -> str:
    """Return the short name of ``dtype``; an unknown name is its own short name."""
    if dtype in _SPECIAL:
        return _SPECIAL[dtype]
    match = _NUMBERED.match(dtype)
    if match is None:
        return dtype
    kind, bits, variant = match.groups()
    return f"{_KINDS[kind]}{bits}{variant or ''}"


def from_short_name(short: str) -> str:
    """Return the dtype with the short name ``short``: the inverse of short_name."""
    if short in _LONG:
        return _LONG[short]
    match = _SHORT.match(short)
    if match is None:
        return short
    kind, bits, variant = match.groups()
    return f"{_PREFIXES[kind]}{bits}" + (f"_{variant}" if variant else "")
