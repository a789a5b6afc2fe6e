"""The common dtype of operands, in a promotion system chosen by name."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol

from amprewrite.dtypes.fits import is_lossless
from amprewrite.dtypes.formats import did_you_mean, format_of
from amprewrite.dtypes.operands import Operand, OperandLike, ResultType, as_operand
from amprewrite.dtypes.systems.array_api import ArrayApiRules
from amprewrite.dtypes.systems.jax import JaxRules
from amprewrite.dtypes.systems.numpy import Numpy1Rules, NumpyRules
from amprewrite.dtypes.systems.torch import TorchRules
from amprewrite.errors import PromotionError


class Rules(Protocol):
    """Rules of a promotion system; their PromotionError has no context yet."""

    dtypes: ClassVar[frozenset[str]]
    """Dtypes that the system defines."""
    advice: ClassVar[str]
    """Advice in the error for a pair that is undefined."""

    def promote(self, a: str, b: str) -> str:
        """Return the common dtype of two dtypes."""
        ...

    def result(self, operands: Sequence[Operand]) -> ResultType:
        """Return the dtype and weakness of an op's result."""
        ...


_SYSTEMS: dict[str, Callable[[bool, str], Rules]] = {
    "jax": lambda x64, _: JaxRules(x64=x64),
    "jax-strict": lambda x64, _: JaxRules(x64=x64, strict=True),
    "torch": lambda _, default_dtype: TorchRules(default_dtype),
    "numpy": lambda _, __: NumpyRules(),
    "numpy1": lambda _, __: Numpy1Rules(),
    "array-api": lambda _, __: ArrayApiRules(),
}

SYSTEMS = tuple(_SYSTEMS)
"""Names of the promotion systems."""

STATIC_SYSTEMS = tuple(name for name in SYSTEMS if name != "numpy1")
"""Systems that need no values, which a plan lacks: those that a policy may name."""


def promote_types(a: str, b: str, system: str = "jax", *, x64: bool = False) -> str:
    """Return the common dtype of two dtypes, as the system's own ``promote_types``.

    Args:
        a: A dtype name.
        b: A dtype name.
        system: One of ``SYSTEMS``.
        x64: For JAX: whether uint32 and int32 make int64. No dtype is narrowed here,
            even in 32-bit mode, as in ``jax.numpy.promote_types``.

    Raises:
        PromotionError: If there is no common dtype.
    """
    names = (format_of(a).name, format_of(b).name)
    rules = _rules(system, x64=x64)
    where = f"promote_types({a}, {b})"
    _check_known(names, rules, system, where)
    try:
        return rules.promote(a, b)
    except PromotionError as error:
        raise _undefined(error, rules, system, where) from None


def result_type(
    *operands: OperandLike,
    system: str = "jax",
    x64: bool = False,
    default_dtype: str = "float32",
) -> ResultType:
    """Return ``(dtype, weak)``, the result type of the operands.

    Args:
        *operands: Dtype names (arrays), Python numbers, or ``Operand``. The value of a
            number does not count, only its kind: that an int is out of range is for
            the operation to find. In system ``numpy1`` values do count, those of 0-d
            arrays too.
        system: One of ``SYSTEMS``.
        x64: For JAX: whether 64-bit dtypes are enabled.
        default_dtype: For torch: the dtype of Python floats.

    Raises:
        PromotionError: If there is no common dtype, or, in system ``numpy1``, if a
            value that is not given decides.
    """
    rules = _rules(system, x64=x64, default_dtype=default_dtype)
    given = tuple(map(as_operand, operands))
    where = f"result_type({', '.join(map(str, given))})"
    if not given:
        raise PromotionError(f"{where}: found nothing; want at least one operand")
    _check_known((x.dtype for x in given), rules, system, where)
    try:
        return rules.result(given)
    except PromotionError as error:
        raise _undefined(error, rules, system, where) from None


def at_least(dtype: str, minimum: str) -> str:
    """Return ``dtype``, widened so that it represents every value of ``minimum``.

    The wider of the two if it represents all values of the other, also where JAX
    defines no promotion (float8 with float32); else their promotion in JAX. float16
    with minimum float32 is float32; float64 and complex64 stay.
    """
    if is_lossless(dtype, minimum):
        return minimum
    if is_lossless(minimum, dtype):
        return dtype
    return promote_types(dtype, minimum, x64=True)


@lru_cache(maxsize=64)
def _rules(system: str, *, x64: bool = False, default_dtype: str = "float32") -> Rules:
    if system in _SYSTEMS:
        return _SYSTEMS[system](x64, default_dtype)
    want = f"{', '.join(SYSTEMS)}{did_you_mean(system, SYSTEMS)}"
    raise PromotionError(f"system {system!r}: unknown; want {want}")


def _check_known(dtypes: Iterable[str], rules: Rules, system: str, where: str) -> None:
    for dtype in dtypes:
        if dtype not in rules.dtypes:
            raise PromotionError(
                f"{where}: there is no {dtype} in system {system!r}; cast it, or "
                "choose another system"
            )


def _undefined(
    error: PromotionError, rules: Rules, system: str, where: str
) -> PromotionError:
    return PromotionError(f"{where}: {error} in system {system!r}; {rules.advice}")
