"""Promotion in JAX: one lattice, with weak types for Python numbers.

``int*``, ``float*`` and ``complex*`` are the weak types. They lie below the sized
dtypes of their kind and above those of the kind before, so that a number adapts to an
array of its kind or a higher one, and lifts an array of a lower one.

Source: JEP 9407 (Design of Type Promotion Semantics for JAX); measured on JAX 0.10.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.lattice import Lattice
from amprewrite.dtypes.operands import Operand, ResultType

_SUB_BYTE = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
_SMALL_FLOATS = (
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)

_EDGES: dict[str, tuple[str, ...]] = {
    "bool": ("int*",),
    "int*": ("uint8", "int8", *_SUB_BYTE),
    "uint8": ("int16", "uint16"),
    "uint16": ("int32", "uint32"),
    "uint32": ("int64", "uint64"),
    "uint64": ("float*",),  # so uint64 with a signed integer is a weak float
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("int64",),
    "int64": ("float*",),
    "float*": ("bfloat16", "float16", "complex*", *_SMALL_FLOATS),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex*": ("complex64",),
    "complex64": ("complex128",),
    "complex128": (),
    # Nothing lies above these: widening them silently would defeat their purpose.
    **dict.fromkeys((*_SUB_BYTE, *_SMALL_FLOATS), ()),
}

_DTYPES = frozenset(name for name in _EDGES if not name.endswith("*"))

_STRICT_EDGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_DTYPES, ()),
    "int*": ("float*", *(n for n in _DTYPES if format_of(n).kind in ("int", "uint"))),
    "float*": ("complex*", *(n for n in _DTYPES if format_of(n).kind == "float")),
    "complex*": ("complex64", "complex128"),
}

_X64 = Lattice(_EDGES)
_X32 = Lattice({**_EDGES, "uint32": ("int32", "uint64")})  # so that 32 bits stay 32
_STRICT = Lattice(_STRICT_EDGES)

_NARROW = {
    "int64": "int32",
    "uint64": "uint32",
    "float64": "float32",
    "complex128": "complex64",
}
"""Canonical dtype of each 64-bit dtype while those are disabled."""

_DEFAULTS = {
    "int": "int64",
    "uint": "uint64",
    "float": "float64",
    "complex": "complex128",
}
"""Dtype of a weak result of each kind, narrowed while 64 bits are disabled."""


@dataclass(frozen=True, slots=True)
class JaxRules:
    """JAX's promotion.

    Attributes:
        x64: Whether 64-bit dtypes are enabled (``jax_enable_x64``).
        strict: Whether only weak types promote (``jax_numpy_dtype_promotion``).
    """

    dtypes: ClassVar[frozenset[str]] = _DTYPES
    advice: ClassVar[str] = (
        "cast one of them: 8-bit floats and all below 8 bits are never widened "
        "implicitly, and in strict mode nothing is"
    )
    x64: bool = False
    strict: bool = False

    @property
    def lattice(self) -> Lattice:
        """The lattice of the mode; ``float*`` is a weak float."""
        if self.strict:
            return _STRICT
        return _X64 if self.x64 else _X32

    def promote(self, a: str, b: str) -> str:
        """Return the join; 64-bit dtypes stay, as in ``jax.numpy.promote_types``."""
        joined = self.lattice.join((a, b))
        return "float64" if joined == "float*" else joined

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the result type of ``operands``: dtype and weakness."""
        weak = [x.weak and x.dtype != "bool" for x in operands]  # bool is never weak
        dtypes = [self.canonical(x.dtype) for x in operands]
        by_size = all(weak) and not (self.strict and len(operands) > 1)
        if by_size:  # weak arrays of any size exist: int16 inside a jit
            joined = self.lattice.join(dtypes)
        else:
            three = zip(operands, dtypes, weak, strict=True)
            joined = self.lattice.join(f"{x.kind}*" if w else d for x, d, w in three)
        if not (by_size or joined.endswith("*")):
            return ResultType(joined, weak=False)
        kind = joined[:-1] if joined.endswith("*") else format_of(joined).kind
        return ResultType(self.canonical(_DEFAULTS[kind]), weak=True)

    def canonical(self, dtype: str) -> str:
        """Return ``dtype``, narrowed while 64 bits are disabled."""
        return dtype if self.x64 else _NARROW.get(dtype, dtype)
