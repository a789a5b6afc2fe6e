"""Rounding of contractions to 8 bits: operands forward, cotangents backward.

Operands are rounded with the derivative of the identity (straight through). The result
passes through :data:`cotangent_p`, the identity, which JAX transposes into a rounding:
it is linear, so that forward mode, reverse mode and batching compose.
"""

import functools
from collections.abc import Sequence
from typing import Any

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat.untyped import ad, batching, jax, jex, mlir
from amprewrite.ir import Op
from amprewrite.ir.factors import factor_indices
from amprewrite.plan import Decision


def amprewrite_quantise(value: Any, name: str, scaling: Any) -> Any:
    """Round an array to the 8-bit format called ``name``; it shows in jaxprs."""
    return quantise_scaled(value, name, scaling)


quantise_operand: Any = functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))(
    amprewrite_quantise
)
"""Function that rounds an array, with the derivative of the identity."""


@quantise_operand.defjvp
def _straight_through(
    name: str, scaling: Any, primals: tuple[Any], tangents: tuple[Any]
) -> tuple[Any, Any]:
    """Return the rounded value, and the tangent as it is."""
    return quantise_operand(*primals, name, scaling), tangents[0]


def quantise_factors(op: Op, decision: Decision, operands: Sequence[Any]) -> list[Any]:
    """Return the operands of a contraction, its factors rounded to 8 bits."""
    found, name = list(operands), decision.forward
    for index in factor_indices(op):
        found[index] = quantise_operand(found[index], name, decision.scaling)
    return found


cotangent_p = jex.Primitive("amprewrite_quantise_cotangent")
"""The identity, with a cotangent rounded to the format ``name``."""


def quantise_cotangent(value: Any, name: str, scaling: str) -> Any:
    """Return ``value``; its cotangent is rounded to the format ``name``."""
    return cotangent_p.bind(value, name=name, scaling=scaling)


def _identity(value: Any, **_: str) -> Any:
    return value


def _transposed(ct: Any, _value: Any, *, name: str, scaling: str) -> tuple[Any]:
    if isinstance(ct, ad.Zero):
        return (ct,)
    return (quantise_operand(ct, name, scaling),)


def _differentiated(
    primals: tuple[Any], tangents: tuple[Any], **how: str
) -> tuple[Any, Any]:
    (tangent,) = tangents
    if not isinstance(tangent, ad.Zero):
        tangent = cotangent_p.bind(tangent, **how)
    return primals[0], tangent


def _batched(operands: tuple[Any], dims: tuple[Any], **how: str) -> tuple[Any, Any]:
    return cotangent_p.bind(*operands, **how), dims[0]


cotangent_p.def_impl(_identity)
cotangent_p.def_abstract_eval(_identity)
mlir.register_lowering(cotangent_p, mlir.lower_fun(_identity, multiple_results=False))
ad.primitive_jvps[cotangent_p] = _differentiated
ad.primitive_transposes[cotangent_p] = _transposed
batching.primitive_batchers[cotangent_p] = _batched
