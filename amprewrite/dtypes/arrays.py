"""Promotion of arrays of NumPy, JAX or torch to their common dtype.

The arrays' own methods cast them, so that no framework is imported: ``astype`` for
NumPy and JAX, ``to`` for torch.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard, cast

from amprewrite.dtypes.formats import format_of
from amprewrite.dtypes.operands import Operand, as_operand
from amprewrite.dtypes.promotion import result_type
from amprewrite.errors import ComplexTruncationError, PromotionError

_TORCH = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16"),
    *("float32", "float64", "complex32", "complex64", "complex128"),
)
"""Dtypes that tensors of torch are cast to."""

_NUMBERS = (bool, int, float, complex)
"""Types of Python numbers; numpy.float64, a float too, has a dtype and is an array."""


def promote_arrays(*xs: object, dtype: str | None = None) -> tuple[Any, ...]:
    """Return arrays in their common dtype, by JAX's lattice.

    The rule is that of ``promote_dtype`` in ``flax.linen.dtypes``, for arrays of NumPy,
    JAX and torch. A Python number is weak and stays a number; None stays None. An array
    that already has the dtype is returned as it is.

    Args:
        *xs: Arrays of one framework, of any shapes, numbers, None, or tuples, lists and
            dicts of these, which may be nested. NumPy arrays may stand beside others.
        dtype: Name of the dtype to cast to, instead of the common one.

    Returns:
        One for each of ``xs``, of the same structure.

    Raises:
        PromotionError: There is no common dtype, something is no array, or the arrays
            are of several frameworks.
        ComplexTruncationError: ``dtype`` is real, and an array is complex.
    """
    leaves = list(_leaves(xs))
    arrays = [leaf for leaf in leaves if not _is_number(leaf)]
    kinds = {library_of(array) for array in arrays} - {"numpy"}
    if len(kinds) > 1:
        found = " and ".join(sorted(kinds))
        msg = f"promote_arrays: found arrays of {found}; want those of one framework"
        raise PromotionError(msg)
    if not leaves:
        return xs
    wanted = _common(leaves) if dtype is None else format_of(dtype).name
    for array in arrays:
        _refuse_truncation(array, wanted)

    def one(leaf: object) -> object:
        return leaf if _is_number(leaf) else _cast(leaf, wanted)

    return tuple(_mapped(one, x) for x in xs)


def _is_number(leaf: object) -> TypeGuard[bool | float | complex]:
    return type(leaf) in _NUMBERS


def _common(leaves: list[object]) -> str:
    """Return the common dtype; it has 64 bits only if some array has.

    A number promotes integers to the default float, which is float32: always in torch,
    and in JAX unless 64 bits are enabled.
    """
    given = [
        as_operand(leaf) if _is_number(leaf) else _operand(leaf) for leaf in leaves
    ]
    strong = (format_of(x.dtype) for x in given if not x.weak)
    wide = any(x.bits >= (128 if x.kind == "complex" else 64) for x in strong)
    return result_type(*given, x64=wide).dtype


def _operand(array: object) -> Operand:
    return Operand(dtype_of(array), weak=bool(getattr(array, "weak_type", False)))


def dtype_of(array: object) -> str:
    """Return the name of the dtype of an array.

    Raises:
        PromotionError: It is no array of numbers.
    """
    name = str(getattr(array, "dtype", "")).removeprefix("torch.")
    try:
        return format_of(name).name
    except PromotionError as error:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        found = f"{kind} of dtype {name}" if name else kind
        msg = (
            f"promote_arrays: found a {found}; want arrays of numbers, Python numbers, "
            f"None, and tuples, lists and dicts of these"
        )
        raise PromotionError(msg) from error


def library_of(array: object) -> str:
    """Return the framework of an array: ``torch``, ``numpy`` or ``jax``."""
    dtype_of(array)
    if str(getattr(array, "dtype", "")).startswith("torch."):
        return "torch"
    root = type(array).__module__.partition(".")[0]
    return "numpy" if root == "numpy" else "jax"  # jaxlib's arrays, and tracers


def _refuse_truncation(array: object, wanted: str) -> None:
    found = dtype_of(array)
    if format_of(found).kind == "complex" != format_of(wanted).kind:
        msg = (
            f"promote_arrays: found a cast of {found} to {wanted}, which drops the "
            f"imaginary part; want a complex dtype there: take the real part or the "
            f"absolute value first"
        )
        raise ComplexTruncationError(msg)


def _cast(array: object, wanted: str) -> object:
    if dtype_of(array) == wanted and not getattr(array, "weak_type", False):
        return array
    if library_of(array) != "torch":
        try:
            return cast("Any", array).astype(wanted)
        except TypeError as error:
            msg = (
                f"promote_arrays: NumPy does not know {wanted}; want a dtype that it "
                f"has, or import ml_dtypes, which adds it"
            )
            raise PromotionError(msg) from error
    if wanted not in _TORCH:
        msg = f"promote_arrays: a torch tensor is not cast to {wanted} here; use .to()"
        raise PromotionError(msg)
    return cast("Any", array).to(getattr(sys.modules["torch"], wanted))


def _leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, Mapping):
        for value in cast("Mapping[Any, Any]", tree).values():
            yield from _leaves(value)
    elif isinstance(tree, (tuple, list)):
        for value in cast("list[Any]", tree):
            yield from _leaves(value)
    elif tree is not None:
        yield tree


def _mapped(function: Callable[[object], object], tree: object) -> object:
    kind: Any = type(tree)
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree).items()
        return {key: _mapped(function, value) for key, value in items}
    if isinstance(tree, (tuple, list)):
        values = [_mapped(function, x) for x in cast("list[Any]", tree)]
        if isinstance(tree, list):
            return values
        return kind(*values) if hasattr(kind, "_fields") else tuple(values)
    return function(tree)
