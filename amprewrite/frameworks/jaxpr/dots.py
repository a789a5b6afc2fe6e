"""Contractions of low operands that accumulate in full precision.

A contraction that hands back its accumulator has float32 cotangents, and JAX would
transpose it into contractions of float32 with low operands, which run in full. Its
derivative is therefore written as low contractions, and everything else is left to
JAX: it composes with jit, vmap, jvp, grad and checkpoints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jax.custom_derivatives import SymbolicZero

from amprewrite.frameworks.jaxpr.calibrate import emits_accumulators
from amprewrite.frameworks.jaxpr.untyped import jax, lax

Contract = Callable[[Any, Any, str], Any]
"""Contracts two low operands into a result of the named dtype."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """One contraction; hashable, as custom rules want their static arguments.

    Attributes:
        bind: Binds the primitive: operands and the dtype of the result.
        low: Name of the low dtype, in which derivatives are contracted.
        full: Name of the full dtype, that of the accumulator.
    """

    bind: Contract
    low: str
    full: str


@lru_cache(maxsize=4096)
def rounded(of: Contraction, wanted: str) -> Any:
    """Return the function of two operands that gives the sums in dtype ``wanted``.

    Layers of a model have equal contractions: JAX traces and lowers each kind once. A
    transformer with 73 was emitted in three quarters of the time then.
    """
    accumulate = accumulator(of)

    def contraction(lhs: Any, rhs: Any) -> Any:
        return lax.convert_element_type(accumulate(lhs, rhs), wanted)

    return jax.jit(contraction)


def accumulator(contraction: Contraction) -> Any:
    """Return the function of two operands that gives the accumulator."""
    bind, low, full = contraction.bind, contraction.low, contraction.full

    @jax.custom_jvp
    def accumulate(lhs: Any, rhs: Any) -> Any:
        return bind(lhs, rhs, full)

    def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        lhs, rhs = primals
        out = accumulate(lhs, rhs)
        parts: list[Any] = []
        for one, other in ((tangents[0], rhs), (lhs, tangents[1])):
            if not isinstance(one, SymbolicZero) and not isinstance(
                other, SymbolicZero
            ):
                lows = [lax.convert_element_type(x, low) for x in (one, other)]
                out_low = bind(lows[0], lows[1], low)
                parts.append(lax.convert_element_type(out_low, full))
        if not parts:
            return out, SymbolicZero(jax.typeof(out).to_tangent_aval())
        return out, parts[0] if len(parts) == 1 else parts[0] + parts[1]

    accumulate.defjvp(jvp, symbolic_zeros=True)
    return accumulate


def contract(
    bind: Contract, operands: tuple[Any, Any], dtypes: tuple[str, str], wanted: str
) -> Any:
    """Contract low ``operands`` into a result of dtype ``wanted``.

    Where the backend is faster so (see :mod:`calibrate`), the accumulator is rounded
    afterwards instead of by the kernel.

    Args:
        bind: Binds the primitive.
        operands: Both operands, low.
        dtypes: Names of the low and the full dtype.
        wanted: Which of them the result has.
    """
    low, _ = dtypes
    if wanted == low and not emits_accumulators(jax.default_backend()):
        return bind(*operands, low)
    return accumulated(bind, operands, dtypes, wanted)


def accumulated(
    bind: Contract, operands: tuple[Any, Any], dtypes: tuple[str, str], wanted: str
) -> Any:
    """Contract ``operands`` in full precision, and their derivatives in low.

    Args:
        bind: Binds the primitive.
        operands: Both operands.
        dtypes: Names of the low and the full dtype.
        wanted: Which of them the result has.
    """
    return rounded(Contraction(bind, *dtypes), wanted)(*operands)


@dataclass(frozen=True, slots=True)
class Dot:
    """Binds ``dot_general`` with given parameters.

    For CPUs the XLA of jaxlib 0.10.2 compiles some layouts of bfloat16 operands with a
    float32 result into code that fails when it runs ("Unsupported element type for
    DotThunk::Execute"): some with two batch dimensions, some in which the contracted
    dimension of the left operand is not its last, and ``(x @ w).T``, where XLA swaps
    the operands. Accumulators are computed there with all batch dimensions in one and
    the left operand laid out anew, and no transposition is moved through the
    contraction. ``vmap`` may add a batch dimension later and keeps this.
    """

    params: tuple[tuple[str, Any], ...]

    def __call__(self, lhs: Any, rhs: Any, result: str) -> Any:
        """Return the contraction of two operands in the dtype called ``result``."""
        rest = dict(self.params)
        dims = rest.pop("dimension_numbers")
        rest["preferred_element_type"] = np.dtype(jax.numpy.dtype(result))
        if str(lhs.dtype) != result and jax.default_backend() == "cpu":
            free = rest.get("out_sharding") is None and _unsharded(lhs, rhs)
            if len(dims[1][0]) > 1 and free:
                return _with_one_batch(lhs, rhs, dims, rest)
            lhs, dims = _contracted_last(lhs, dims)
            out = lax.dot_general_p.bind(lhs, rhs, dimension_numbers=dims, **rest)
            return lax.optimization_barrier(out)
        return lax.dot_general_p.bind(lhs, rhs, dimension_numbers=dims, **rest)


def _unsharded(*operands: Any) -> bool:
    """Whether no mesh has explicit axes: merged dimensions would need shardings."""
    meshes = (jax.typeof(x).sharding.mesh for x in operands)
    return all(mesh.empty or mesh.are_all_axes_auto for mesh in meshes)


def _contracted_last(lhs: Any, dims: Any) -> tuple[Any, Any]:
    """Return the left operand with its one contracted dimension as the last."""
    (left, right), (left_batch, right_batch) = dims
    if len(left) != 1 or left[0] == lhs.ndim - 1:
        return lhs, dims
    order = [i for i in range(lhs.ndim) if i != left[0]]
    batch = tuple(order.index(i) for i in left_batch)
    moved = _laid_out(lhs, (*order, left[0]))
    return moved, (((lhs.ndim - 1,), right), (batch, right_batch))


def _laid_out(x: Any, order: Sequence[int]) -> Any:
    """Transpose in memory: XLA folds a plain transposition into the contraction."""
    if tuple(order) == tuple(range(x.ndim)):
        return x
    return lax.optimization_barrier(lax.transpose(x, order))


def _with_one_batch(lhs: Any, rhs: Any, dims: Any, rest: dict[str, Any]) -> Any:
    (left, right), (left_batch, right_batch) = dims
    left_free = [i for i in range(lhs.ndim) if i not in (*left, *left_batch)]
    right_free = [i for i in range(rhs.ndim) if i not in (*right, *right_batch)]
    lhs = _laid_out(lhs, (*left_batch, *left_free, *left))
    rhs = lax.transpose(rhs, (*right_batch, *right, *right_free))
    count = len(left_batch)
    batch: tuple[int, ...] = lhs.shape[:count]
    free = (
        *lhs.shape[count : count + len(left_free)],
        *rhs.shape[count + len(right) :],
    )
    lhs = lax.reshape(lhs, (int(np.prod(batch)), *lhs.shape[count:]))
    rhs = lax.reshape(rhs, (int(np.prod(batch)), *rhs.shape[count:]))
    contracting = (
        tuple(range(1 + len(left_free), lhs.ndim)),
        tuple(range(1, 1 + len(right))),
    )
    out = lax.dot_general_p.bind(
        lhs, rhs, dimension_numbers=(contracting, ((0,), (0,))), **rest
    )
    return lax.reshape(lax.optimization_barrier(out), (*batch, *free))


@dataclass(frozen=True, slots=True)
class Other:
    """Binds another contraction with given parameters."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]

    def __call__(self, lhs: Any, rhs: Any, result: str) -> Any:
        """Return the contraction of two operands in the dtype called ``result``."""
        dtype = np.dtype(jax.numpy.dtype(result))
        params = {**dict(self.params), "preferred_element_type": dtype}
        return self.primitive.bind(lhs, rhs, **params)


def binder(primitive: Any, params: dict[str, Any]) -> Contract:
    """Return how the contraction ``primitive`` with these parameters is bound."""
    held = tuple(params.items())
    return Dot(held) if primitive is lax.dot_general_p else Other(primitive, held)
