"""Bind contraction primitives in layouts that every backend can run."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat.primitives import bind
from amprewrite.frameworks.jaxpr.compat.untyped import jax, lax


@dataclass(frozen=True, slots=True)
class Dot:
    """Binds ``dot_general`` with given parameters, avoiding failing layouts on CPUs.

    For CPUs the XLA of jaxlib 0.10.2 and 0.11.2 compiles some layouts of bfloat16
    operands with a float32 result into code that fails at run time ("Unsupported
    element type for DotThunk::Execute"): some with two batch dimensions, some with two
    contracted ones, some with a contracted dimension of the left operand that is not
    its last, also where XLA derived that from an earlier transposition, and ``(x @
    w).T``, where XLA swaps the operands. There, the batch dimensions are merged into
    one and the contracted ones into one, the left operand is copied to a new layout,
    and barriers stop XLA from moving transpositions into or through the contraction.
    ``vmap`` may add a batch dimension later and keeps this.
    """

    params: tuple[tuple[str, Any], ...]

    @property
    def primitive(self) -> Any:
        """The bound primitive."""
        return lax.dot_general_p

    def __call__(self, lhs: Any, rhs: Any, result: str) -> Any:
        """Return the contraction of two operands in the dtype called ``result``."""
        rest = dict(self.params)
        dims = rest.pop("dimension_numbers")
        rest["preferred_element_type"] = np.dtype(jax.numpy.dtype(result))
        if str(lhs.dtype) != result and jax.default_backend() == "cpu":
            several = any(len(part) > 1 for part in (dims[0][0], dims[1][0]))
            if several and rest.get("out_sharding") is None and _unsharded(lhs, rhs):
                return _merged(lhs, rhs, dims, rest)
            lhs, dims = _contracted_last(lhs, dims)
            return lax.optimization_barrier(_dot(lhs, rhs, dims, rest))
        return _dot(lhs, rhs, dims, rest)


def _dot(lhs: Any, rhs: Any, dims: Any, rest: dict[str, Any]) -> Any:
    params = {"dimension_numbers": dims, **rest}
    return bind(lax.dot_general_p, (lhs, rhs), params)[0]


def _unsharded(*operands: Any) -> bool:
    """Return whether no mesh has explicit axes, which merged dimensions need."""
    meshes = (jax.typeof(x).sharding.mesh for x in operands)
    return all(mesh.empty or mesh.are_all_axes_auto for mesh in meshes)


def _contracted_last(lhs: Any, dims: Any) -> tuple[Any, Any]:
    """Return the left operand with its contracted dimensions as the last."""
    (left, right), (left_batch, right_batch) = dims
    order = [*(i for i in range(lhs.ndim) if i not in left), *left]
    batch = tuple(order.index(i) for i in left_batch)
    last = tuple(range(lhs.ndim - len(left), lhs.ndim))
    return _laid_out(lhs, order), ((last, right), (batch, right_batch))


def _laid_out(x: Any, order: Sequence[int]) -> Any:
    """Transpose in memory: XLA folds a plain transposition into the contraction."""
    return lax.optimization_barrier(lax.transpose(x, order))


def _merged(lhs: Any, rhs: Any, dims: Any, rest: dict[str, Any]) -> Any:
    """Contract with all batch dimensions in one, and all contracted ones in one."""
    (left, right), (left_batch, right_batch) = dims
    left_free = [i for i in range(lhs.ndim) if i not in (*left, *left_batch)]
    right_free = [i for i in range(rhs.ndim) if i not in (*right, *right_batch)]
    lhs = lax.transpose(lhs, (*left_batch, *left_free, *left))
    rhs = lax.transpose(rhs, (*right_batch, *right, *right_free))
    count, terms = len(left_batch), len(left)
    batch, sums = lhs.shape[:count], lhs.shape[lhs.ndim - terms :]
    rows = lhs.shape[count : lhs.ndim - terms]
    columns = rhs.shape[count + terms :]
    one = (prod(batch),) if batch else ()
    lhs = lax.reshape(lhs, (*one, *rows, prod(sums)))
    rhs = lax.reshape(rhs, (*one, prod(sums), *columns))
    first = tuple(range(len(one)))
    contracting = ((lhs.ndim - 1,), (len(one),))
    dims = contracting, (first, first)
    out = _dot(lax.optimization_barrier(lhs), rhs, dims, rest)
    return lax.reshape(lax.optimization_barrier(out), (*batch, *rows, *columns))


@dataclass(frozen=True, slots=True)
class Other:
    """Binds a contraction other than ``dot_general`` with given parameters."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]

    def __call__(self, lhs: Any, rhs: Any, result: str) -> Any:
        """Return the contraction of two operands in the dtype called ``result``."""
        dtype = np.dtype(jax.numpy.dtype(result))
        params = {**dict(self.params), "preferred_element_type": dtype}
        return bind(self.primitive, (lhs, rhs), params)[0]


def binder(primitive: Any, params: dict[str, Any]) -> "Dot | Other":
    """Return a function that binds the contraction ``primitive`` with parameters."""
    held = tuple(params.items())
    return Dot(held) if primitive is lax.dot_general_p else Other(primitive, held)


def abs_square(value: Any) -> Any:
    """Return ``|value|**2`` as complex numbers with an imaginary part of zero."""
    real, imag = lax.real(value), lax.imag(value)
    square = real * real + imag * imag
    return lax.complex(square, lax.full_like(square, 0))
