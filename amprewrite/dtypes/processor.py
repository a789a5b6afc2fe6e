"""The dtype rules of ops: computing dtype, result dtype and operand casts.

One rule and its inputs in, casts out, as in OneFlow's ``TensorProcessor`` of its
functional layer; unlike there, each promotion system keeps its own tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from amprewrite.dtypes.fits import KIND_RANK, is_lossless
from amprewrite.dtypes.formats import format_of, is_float
from amprewrite.dtypes.operands import Operand, OperandLike, ResultType, as_operand
from amprewrite.dtypes.promotion import at_least, promote_types, result_type
from amprewrite.errors import ComplexTruncationError, PromotionError

# Promotion of bools and integers in float functions and in sums.
#
# Sources: torch, ``get_dtype_from_self`` in aten/native/ReduceOpsUtils.h; JAX,
# ``dtypes.to_inexact_dtype``; NumPy, the loops of its ufuncs (``numpy.exp.types``); the
# array API standard, ``sum`` and ``prod``. Measured on torch 2.13, JAX 0.10.2, NumPy
# 2.4 and array-api-strict 2.6.1.

_SIXTY_FOUR = 64


def is_whole(dtype: str) -> bool:
    """Return whether ``dtype`` holds bools or integers."""
    return format_of(dtype).kind in ("bool", "int", "uint")


def as_float(dtype: str, system: str, default_dtype: str = "float32") -> str:
    """Return the float dtype of ``exp`` and its like on a bool or an integer.

    torch: the default dtype. JAX: float32, float64 from 64 bits on. NumPy: the first
    float to which a cast is safe (its division and its mean always make float64).
    Floats and complex numbers stay.

    Raises:
        PromotionError: The array API standard defines such functions for floats only.
    """
    if not is_whole(dtype):
        return dtype
    if system == "torch":
        return default_dtype
    if system in ("numpy", "numpy1"):
        return promote_types(dtype, "float16", "numpy")
    if system == "array-api":
        raise PromotionError(f"found {dtype}; want floats: cast it explicitly")
    return "float64" if format_of(dtype).bits == _SIXTY_FOUR else "float32"


def widened(dtype: str, minimum: str, system: str) -> str:
    """Return a bool or an integer widened to ``minimum``, the dtype of its ``sum``.

    torch uses ``minimum`` itself; the others keep unsigned dtypes unsigned. Floats and
    complex numbers are not changed.

    Raises:
        PromotionError: The array API standard sums no bools.
    """
    if not is_whole(dtype):
        return dtype
    if dtype == "bool" and system == "array-api":
        raise PromotionError("found bool; want numbers: cast it explicitly")
    if system == "torch":
        return minimum
    bits = max(format_of(dtype).bits, format_of(minimum).bits)
    return f"uint{bits}" if format_of(dtype).kind == "uint" else f"int{bits}"


class Behaviour(StrEnum):
    """Relation between the dtypes of an op's operands and that of its result."""

    SAME = "same"
    """Refuses unequal dtypes: all are cast to the promoted one, the result's too."""
    PROMOTE = "promote"
    """Promotes its operands in the kernel."""
    MINIMUM = "minimum"
    """Computes in the promoted dtype, widened to ``Rule.dtype`` if it is narrower."""
    INT_TO_FLOAT = "int_to_float"
    """Promotes; bools and integers become floats."""
    BOOL = "bool"
    """Promotes; the result is bool."""
    FIXED = "fixed"
    """Promotes; the result has ``Rule.dtype``, such as the integers of ``argmax``."""
    FOLLOW_SELF = "follow_self"
    """Writes into the first operand: the others are cast to its dtype."""
    MIXED = "mixed"
    """Accepts float32 parameters beside a half-precision first operand.

    The result has the dtype of that operand; statistics are at least float32.
    """
    PRESERVE = "preserve"
    """Returns the dtype of the first ``x`` operand, ignoring the others."""


_ROLES = {Behaviour.MIXED: "xp", Behaviour.PRESERVE: "x-"}


@dataclass(frozen=True, slots=True)
class Rule:
    """The dtype rule of an op.

    Attributes:
        behaviour: How the result's dtype follows from the operands'.
        roles: One letter an operand: ``x`` promotes with the others, ``p`` is a
            parameter (for mixed), ``-`` is none of this: an index, a mask, a count. The
            letter before a ``*`` stands for any number of operands; without one, the
            last does. By default ``x`` for all; for mixed ``xp``, for preserve ``x-``.
        dtype: Of minimum and fixed. An integer minimum is for integers only.
        equal: Whether torch refuses unequal dtypes, so that the casts must be written.
        real: Whether it makes real numbers of complex ones, as ``abs`` does.
        floats: Whether torch and the array API refuse bools and integers.
        reduction: Whether the result is never weak.
    """

    behaviour: Behaviour
    roles: str = ""
    dtype: str = ""
    equal: bool = False
    real: bool = False
    floats: bool = False
    reduction: bool = False

    @property
    def needs_equal(self) -> bool:
        """Whether the op refuses unequal dtypes, so that casts must be written."""
        return self.equal or self.behaviour is Behaviour.SAME

    def roles_of(self, count: int) -> str:
        """Return the roles of ``count`` operands."""
        roles = self.roles or _ROLES.get(self.behaviour, "x")
        head, _, tail = roles.partition("*")
        before = max(count - len(tail), 0)
        return (head[:before].ljust(before, head[-1]) + tail)[:count]


@dataclass(frozen=True, slots=True)
class Promoted:
    """The dtypes of one application of an op, and the casts that it needs.

    Attributes:
        computes: The dtype in which it computes.
        dtype: The dtype of its result.
        weak: Whether the result is weak; only ever in JAX.
        casts: For each operand the dtype to which it is cast; None for none. A number
            needs none, nor does a 0-d tensor in torch where the op promotes by itself:
            both keep their precision there.
    """

    computes: str
    dtype: str
    weak: bool
    casts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Processor:
    """Application of dtype rules in one promotion system.

    Attributes:
        system: One of ``SYSTEMS``.
        x64: For JAX: whether 64-bit dtypes are enabled.
        default_dtype: For torch: the dtype of Python floats.
        truncate_complex: Whether complex numbers may be cast to real ones.
    """

    system: str = "jax"
    x64: bool = False
    default_dtype: str = "float32"
    truncate_complex: bool = False

    def apply(
        self,
        rule: Rule,
        *operands: OperandLike,
        dtype: str | None = None,
        in_place: bool = False,
    ) -> Promoted:
        """Return the dtypes and casts of an op with ``rule`` on operands.

        Args:
            rule: The rule of the op.
            *operands: Dtype names, Python numbers or ``Operand``, in the op's order.
            dtype: The dtype that the call itself asks for, as in ``sum(x, dtype=...)``.
            in_place: Whether the result is written into the first operand.

        Raises:
            PromotionError: If there is no common dtype, or the result cannot be
                written into the first operand.
            ComplexTruncationError: If a complex number would be cast to a real one.
        """
        given = tuple(map(as_operand, operands))
        where = f"{rule.behaviour}({', '.join(map(str, given))})"
        roles = rule.roles_of(len(given))
        if "x" not in roles:
            raise PromotionError(f"{where}: found no operand that promotes; want one")
        if dtype is not None:
            result = ResultType(self._result(dtype).dtype, weak=False)
            computes = result.dtype
        else:
            try:
                computes, result = self._computed(rule, given, roles)
            except PromotionError as error:
                raise PromotionError(f"{where}: {error}") from None
        casts = _casts(rule, given, roles, computes, adapts=self.system == "torch")
        used = zip(given, roles, strict=True)
        changes = [(x.dtype, computes) for x, role in used if role != "-"]
        if not rule.real and rule.behaviour not in (Behaviour.BOOL, Behaviour.FIXED):
            changes.append((computes, result.dtype))
        if in_place:
            changes.append((result.dtype, given[0].dtype))
            result = self._written(where, given[0].dtype, result.dtype)
        if not self.truncate_complex:
            _refuse_truncation(where, changes)
        return Promoted(computes, result.dtype, result.weak, casts)

    def _computed(
        self, rule: Rule, given: Sequence[Operand], roles: str
    ) -> tuple[str, ResultType]:
        """Return the dtype in which an op computes, and that of its result."""
        joined = [x for x, role in zip(given, roles, strict=True) if role == "x"]
        follows = rule.behaviour in (Behaviour.FOLLOW_SELF, Behaviour.PRESERVE)
        result = self._result(*(joined[:1] if follows else joined))
        if rule.floats:
            self._refuse_whole(result.dtype)
        computes = result.dtype
        match rule.behaviour:
            case Behaviour.MIXED:
                computes = as_float(computes, self.system, self.default_dtype)
                result = ResultType(computes, weak=False)
                used = zip(given, roles, strict=True)
                every = [x.dtype for x, role in used if role == "p" and not x.weak]
                computes = reduce(at_least, every, at_least(computes, "float32"))
            case Behaviour.MINIMUM:
                computes = self._at_least(computes, rule.dtype)
                result = ResultType(computes, weak=False)
            case Behaviour.BOOL | Behaviour.FIXED:
                result = ResultType(
                    self._result(rule.dtype or "bool").dtype, weak=False
                )
            case Behaviour.INT_TO_FLOAT:
                computes = as_float(computes, self.system, self.default_dtype)
                result = ResultType(computes, result.weak)
            case _:
                pass
        real = _real_part(result.dtype) if rule.real else result.dtype
        return computes, ResultType(real, result.weak and not rule.reduction)

    def _refuse_whole(self, dtype: str) -> None:
        if is_whole(dtype) and self.system in ("torch", "array-api"):
            raise PromotionError(f"found {dtype}; want floats: cast it explicitly")

    def _result(self, *operands: OperandLike) -> ResultType:
        return result_type(
            *operands,
            system=self.system,
            x64=self.x64,
            default_dtype=self.default_dtype,
        )

    def _at_least(self, dtype: str, minimum: str) -> str:
        if is_whole(minimum):
            return self._result(widened(dtype, minimum, self.system)).dtype
        return at_least(dtype, minimum)

    def _written(self, where: str, own: str, result: str) -> ResultType:
        """Return ``own``, after refusing a result of a kind that it cannot represent.

        Sources: ``canCast`` in c10/core/ScalarType.h; NumPy's ``same_kind``; the array
        API standard, in-place operators: the dtype must not change.
        """
        ranks = _NUMPY_RANK if self.system in ("numpy", "numpy1") else KIND_RANK
        found, wanted = format_of(result).kind, format_of(own).kind
        is_exact = self.system == "array-api"
        is_lower = result != own if is_exact else ranks[wanted] < ranks[found]
        if is_lower and not (found == "complex" and wanted != "complex"):
            raise PromotionError(
                f"{where}: found a result of {result}; want one that can be written "
                f"into {own}: cast it, or do not work in place"
            )
        return ResultType(own, weak=False)


_NUMPY_RANK = {**KIND_RANK, "uint": 0.5}


def _real_part(dtype: str) -> str:
    entry = format_of(dtype)
    return f"float{entry.bits // 2}" if entry.kind == "complex" else dtype


def _casts(
    rule: Rule, given: Sequence[Operand], roles: str, computes: str, *, adapts: bool
) -> tuple[str | None, ...]:
    """Return for each operand its cast to the computing dtype; None for no cast.

    With ``adapts``, 0-d operands beside larger ones need none, as numbers need none.
    """
    wanted = dict.fromkeys("xp", computes)
    pairs = list(zip(given, roles, strict=True))
    if rule.behaviour is Behaviour.MIXED:
        own = given[0].dtype
        if computes == "float32" and is_lossless(own, computes) and is_float(own):
            wanted["x"] = own  # the kernel widens its operand
        if {x.dtype for x, role in pairs if role != "-"} == {own}:
            wanted["p"] = own
    has_extent = any(x.ndim and not x.weak and role == "x" for x, role in pairs)
    adapts = adapts and has_extent and not rule.needs_equal

    def cast(operand: Operand, role: str) -> str | None:
        is_number = operand.weak and not operand.ndim
        if role == "-" or is_number or (adapts and not operand.ndim):
            return None
        return None if operand.dtype == wanted[role] else wanted[role]

    return tuple(cast(x, role) for x, role in pairs)


def _refuse_truncation(where: str, changes: Sequence[tuple[str, str]]) -> None:
    for source, target in changes:
        if format_of(source).kind == "complex" != format_of(target).kind:
            raise ComplexTruncationError(
                f"{where}: found a cast of {source} to {target}, which drops the "
                "imaginary part; want a complex dtype there: take the real part or the "
                "absolute value first, or allow it with truncate_complex=True"
            )
