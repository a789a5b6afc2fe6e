"""Primitives on NumPy arrays: nothing is compiled to see which function a part is."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

sp: Any = special
_operator: Any = operator
Array = Any


def _select(which: Array, *cases: Array) -> Array:
    """Return the chosen case of each element; truth values choose the second."""
    return np.choose(np.asarray(which, np.int64), np.broadcast_arrays(*cases))


def _broadcast(x: Array, shape: Any, broadcast_dimensions: Any, **_: Any) -> Array:
    extents = [1] * len(shape)
    for size, axis in zip(np.shape(x), broadcast_dimensions, strict=True):
        extents[axis] = size
    return np.broadcast_to(np.reshape(x, extents), shape)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _divide(x: Array, y: Array) -> Array:
    return x / y if x.dtype.kind == "f" else x // y


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _squeeze(x: Array, dimensions: Any, **_: Any) -> Array:
    return np.squeeze(x, tuple(map(int, dimensions)))


def _transpose(x: Array, permutation: Any, **_: Any) -> Array:
    return np.transpose(x, permutation)


def _iota(dtype: Any, shape: Any, dimension: int, **_: Any) -> Array:
    extents = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    counted = np.arange(shape[dimension], dtype=dtype).reshape(extents)
    return np.broadcast_to(counted, shape)


def _reduce(function: Any) -> Callable[..., Array]:
    def reduce(x: Array, axes: Any, **_: Any) -> Array:
        return function(x, axis=tuple(map(int, axes)))

    return reduce


def _integer_pow(x: Array, y: int) -> Array:
    return np.power(x, y, dtype=x.dtype) if y >= 0 else 1 / np.power(x, -y)


def _reshape(x: Array, new_sizes: Any, dimensions: Any = None, **_: Any) -> Array:
    del dimensions
    return np.reshape(x, new_sizes)


def _plain(function: Any) -> Callable[..., Array]:
    return lambda *xs, **_: function(*xs)


NUMPY: Mapping[str, Callable[..., Array]] = {
    **{
        name: _plain(getattr(np, name))
        for name in (
            "abs", "cos", "exp", "exp2", "expm1", "floor", "log", "log1p", "sign",
            "sin", "sqrt", "square", "tan", "tanh",
        )
    },
    **{
        name: _plain(getattr(sp, name)) for name in ("erf", "erfc")
    },
    "add": _plain(_operator.add),
    "add_any": _plain(_operator.add),
    "and": _plain(np.bitwise_and),
    "broadcast_in_dim": _broadcast,
    "clamp": _plain(_clamp),
    "copy": _plain(np.copy),
    "div": _plain(_divide),
    "eq": _plain(_operator.eq),
    "ge": _plain(_operator.ge),
    "gt": _plain(_operator.gt),
    "integer_pow": _integer_pow,
    "iota": _iota,
    "is_finite": _plain(np.isfinite),
    "le": _plain(_operator.le),
    "logistic": _plain(sp.expit),
    "lt": _plain(_operator.lt),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "mul": _plain(_operator.mul),
    "ne": _plain(_operator.ne),
    "neg": _plain(_operator.neg),
    "not": _plain(np.bitwise_not),
    "or": _plain(np.bitwise_or),
    "pow": _plain(np.power),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_sum": _reduce(np.sum),
    "reshape": _reshape,
    "rsqrt": _plain(_rsqrt),
    "select_n": _plain(_select),
    "squeeze": _squeeze,
    "stop_gradient": _plain(np.asarray),
    "sub": _plain(_operator.sub),
    "transpose": _transpose,
}  # fmt: skip
"""By name of the primitive; parameters by keyword."""


def run(name: str, operands: list[Array], params: Mapping[str, Any]) -> Array | None:
    """Return the result of a primitive; None if it is not known here.

    Args:
        name: Name of the primitive.
        operands: NumPy arrays.
        params: Parameters of the equation.
    """
    function = NUMPY.get(name)
    if function is None or not all(isinstance(x, np.ndarray) for x in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*operands, **params))
