"""Rounding of contractions to 8 bits: operands forward, cotangents backward.

Operands are rounded with the derivative of the identity (straight through). The result
passes through :data:`cotangent_p`, the identity, which JAX transposes into a rounding:
it is linear, so that forward mode, reverse mode and batching compose.
"""

from collections.abc import Sequence
from typing import Any

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat.untyped import ad, batching, jex, mlir
from amprewrite.ir import Op
from amprewrite.ir.factors import factor_indices
from amprewrite.plan import Decision

operand_p = jex.Primitive("amprewrite_quantise")
"""Rounding to the format ``name``; its derivative is the identity."""


def quantise_operand(value: Any, name: str, scaling: str) -> Any:
    """Return ``value`` rounded to the format ``name``, with derivative 1."""
    return operand_p.bind(value, name=name, scaling=scaling)


def _rounded(value: Any, *, name: str, scaling: Any) -> Any:
    return quantise_scaled(value, name, scaling)


def _as_read(aval: Any, **_: str) -> Any:
    return aval.update(weak_type=False)


def _straight_through(
    primals: tuple[Any], tangents: tuple[Any], **how: str
) -> tuple[Any, Any]:
    return operand_p.bind(*primals, **how), tangents[0]


def _straight_back(ct: Any, _value: Any, **_: str) -> tuple[Any]:
    """Pass a cotangent on: JAX transposes programs that are linear in the operand."""
    return (ct,)


def _batched_operand(
    operands: tuple[Any], dims: tuple[Any], **how: str
) -> tuple[Any, Any]:
    """Round a batch, with one scale."""
    return operand_p.bind(*operands, **how), dims[0]


operand_p.def_impl(_rounded)
operand_p.def_abstract_eval(_as_read)
mlir.register_lowering(operand_p, mlir.lower_fun(_rounded, multiple_results=False))
ad.primitive_jvps[operand_p] = _straight_through
ad.primitive_transposes[operand_p] = _straight_back
batching.primitive_batchers[operand_p] = _batched_operand


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
