"""Programs for JAX tests: what every converted program keeps, checked in one place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

import amprewrite

FORWARD = 3e-2
"""Bound on the relative error of outputs in bfloat16."""

GRADIENT = 5e-2
"""Bound on the relative error of gradients in bfloat16."""

CONTRACTIONS = ("dot_general", "conv_general_dilated")

NEVER_LOW = frozenset(
    (
        "cos",
        "cumlogsumexp",
        "cumprod",
        "cumsum",
        "digamma",
        "erf_inv",
        "exp",
        "exp2",
        "expm1",
        "lgamma",
        "log",
        "log1p",
        "pow",
        "psum",
        "psum_invariant",
        "reduce_prod",
        "reduce_sum",
        "reduce_window_sum",
        "rsqrt",
        "sin",
        "tan",
    )
)
"""Primitives that the shipped policies never run in low precision."""

LOW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """A program, and what it cannot do even without conversion.

    Attributes:
        function: The program.
        args: What it is called with.
        grad: Whether JAX can differentiate it in reverse.
        vmap: Whether JAX can batch it.
        sums: Whether its gradient sums low values over what vmap broadcast.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    grad: bool = True
    vmap: bool = True
    sums: bool = False


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    """Return reproducible float32 numbers, made without JAX."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(drawn * scale, jnp.float32)


def weight(rows: int, columns: int, seed: int = 1) -> Any:
    """Return a matrix that keeps the size of what it is applied to."""
    return normal(rows, columns, seed=seed, scale=rows**-0.5)


def floats(tree: Any) -> list[Any]:
    """Return the float leaves of ``tree``."""
    leaves = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]


def relative_error(found: Any, expected: Any) -> float:
    """Return the relative L2 distance over all float leaves."""
    pairs = list(zip(floats(found), floats(expected), strict=True))
    wide = [(_wide(a), _wide(b)) for a, b in pairs]
    above = sum(float(np.sum(np.abs(a - b) ** 2)) for a, b in wide)
    below = sum(float(np.sum(np.abs(b) ** 2)) for _, b in wide)
    if below == 0:
        return above**0.5
    return (above / below) ** 0.5


def _wide(x: Any) -> Any:
    kind = np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64
    return np.asarray(x).astype(kind)


def dtypes(tree: Any) -> list[str]:
    """Return the dtype of every array in ``tree``."""
    return [str(x.dtype) for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a number that every float output of ``function`` has a part in."""

    def loss(*args: Any) -> Any:
        total = jnp.float32(0)
        for index, found in enumerate(floats(function(*args))):
            leaf = jnp.asarray(found)  # a number that is no array among them
            real = jnp.real(leaf) + jnp.imag(leaf) if jnp.iscomplexobj(leaf) else leaf
            turn = np.cos(np.arange(real.size) + index).reshape(real.shape)
            total += jnp.sum(real * turn.astype(np.float32))  # float32 at least
        return total

    return loss


def gradient_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient by all arguments; those of no floats have none."""
    return jax.grad(loss_of(function), allow_int=True)


def over_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of one tuple, to differentiate it by all arguments."""
    return lambda args: function(*args)


FENCED = frozenset(
    ("custom_linear_solve", "custom_root", "custom_vmap_call", "linear_call")
) | {"linear_solve", "pallas_call"}
"""Primitives whose bodies the documentation says are left as they were traced."""


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr at every depth; not those of fenced bodies."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name not in FENCED:
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from equations(inner)


def operand_dtypes(eqn: Any) -> list[str]:
    """Return the dtypes of the operands of an equation."""
    return [str(v.aval.dtype) for v in eqn.invars if hasattr(v.aval, "dtype")]


def checked_jaxpr(function: Callable[..., Any], *args: Any) -> Any:
    """Return the jaxpr of ``function``, after JAX's own type check."""
    closed = jax.make_jaxpr(function)(*args)
    jex.check_jaxpr(closed.jaxpr)
    return closed


def full_contractions(closed: Any) -> list[str]:
    """Return the contractions of which an operand is not low.

    Two kinds are documented to stay in full precision: an outer product sums nothing,
    and a ``precision=`` that the program gives asks for it.
    """
    return [
        f"{eqn.primitive.name}{operand_dtypes(eqn)}"
        for eqn in equations(closed)
        if eqn.primitive.name in CONTRACTIONS
        and not all(dtype in LOW for dtype in operand_dtypes(eqn))
        and not _is_outer_product(eqn)
        and eqn.params["precision"] in (None, (jax.lax.Precision.DEFAULT,) * 2)
    ]


def _is_outer_product(eqn: Any) -> bool:
    if eqn.primitive.name != "dot_general":
        return False
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return all(eqn.invars[0].aval.shape[axis] == 1 for axis in contracted)


def wrongly_low(closed: Any) -> list[str]:
    """Return the equations in low precision that no policy lowers."""
    return [
        f"{eqn.primitive.name}{operand_dtypes(eqn)}"
        for eqn in equations(closed)
        if eqn.primitive.name in NEVER_LOW
        and any(dtype in LOW for dtype in operand_dtypes(eqn))
        and not _sums_nothing(eqn)
    ]


def _sums_nothing(eqn: Any) -> bool:
    """Whether a sum only drops dimensions of one element, as transposed ones do."""
    shape = eqn.invars[0].aval.shape
    axes = eqn.params.get("axes")
    return axes is not None and all(shape[axis] == 1 for axis in axes)


def keeps_its_promises(
    case: Case, policy: str = "bf16", bounds: tuple[float, float] = (FORWARD, GRADIENT)
) -> None:
    """Convert ``case`` and assert all that a converted program keeps."""
    converted = amprewrite.convert(case.function, policy)
    _forward(case, converted, bounds[0])
    if case.vmap:
        _batched(case, converted, policy, bounds[0])
    if case.grad:
        _backward(case, converted, policy, bounds[1])


def _forward(case: Case, converted: Any, bound: float) -> None:
    expected = jax.jit(case.function)(*case.args)
    found = converted(*case.args)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert dtypes(found) == dtypes(expected)
    assert relative_error(found, expected) <= bound
    compiled = jax.jit(converted)(*case.args)
    assert dtypes(compiled) == dtypes(expected)
    assert relative_error(compiled, expected) <= bound
    closed = checked_jaxpr(converted, *case.args)
    _right_precisions(closed)


def _right_precisions(closed: Any, *, sums: bool = False) -> None:
    assert not full_contractions(closed)
    low = [eqn for eqn in wrongly_low(closed) if not (sums and "reduce_sum" in eqn)]
    assert not low, low


def _batched(case: Case, converted: Any, policy: str, bound: float) -> None:
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), case.args)
    expected = jax.jit(jax.vmap(case.function))(*stacked)
    outside = jax.vmap(converted)
    inside = amprewrite.convert(jax.vmap(case.function), policy)
    for batched in (outside, inside):
        _right_precisions(checked_jaxpr(batched, *stacked))
        found = jax.jit(batched)(*stacked)
        assert dtypes(found) == dtypes(expected)
        assert relative_error(found, expected) <= bound


def _backward(case: Case, converted: Any, policy: str, bound: float) -> None:
    plain = gradient_of(over_all(case.function))
    expected = jax.jit(plain)(case.args)
    before = gradient_of(over_all(converted))
    after = amprewrite.convert(plain, policy)
    for gradient in (before, after):
        found = jax.jit(gradient)(case.args)
        assert dtypes(found) == dtypes(expected)
        assert relative_error(found, expected) <= bound
        closed = checked_jaxpr(gradient, case.args)
        _right_precisions(closed, sums=case.sums)
