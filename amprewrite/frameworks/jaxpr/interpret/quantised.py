"""Rounding of contractions to 8 bits: operands forward, cotangents backward.

Operands are rounded with the derivative of the identity (straight through). The result
passes through a primitive that is the identity, which JAX transposes into a rounding:
it is linear, so that forward mode, reverse mode and batching compose.
"""

from collections.abc import Sequence
from typing import Any

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat.primitives import new_unary
from amprewrite.ir import Op
from amprewrite.ir.factors import factor_indices
from amprewrite.plan import Decision


def quantise_operand(value: Any, name: str, scaling: str) -> Any:
    """Return ``value`` rounded to the format ``name``, with derivative 1."""
    return _operand(value, name=name, scaling=scaling)


def quantise_cotangent(value: Any, name: str, scaling: str) -> Any:
    """Return ``value``; its cotangent is rounded to the format ``name``."""
    return _cotangent(value, name=name, scaling=scaling)


def quantise_factors(op: Op, decision: Decision, operands: Sequence[Any]) -> list[Any]:
    """Return the operands of a contraction, its factors rounded to 8 bits."""
    rounded, name = list(operands), decision.forward
    for index in factor_indices(op):
        rounded[index] = quantise_operand(rounded[index], name, decision.scaling)
    return rounded


def _rounded(value: Any, *, name: str, scaling: Any) -> Any:
    return quantise_scaled(value, name, scaling)


def _unchanged(value: Any, **_: str) -> Any:
    """Return a tangent or cotangent: JAX transposes programs linear in the operand."""
    return value


def _tangent(tangent: Any, **how: str) -> Any:
    return _cotangent(tangent, **how)


_operand = new_unary("amprewrite_quantise", _unchanged, _unchanged, _rounded)
_cotangent = new_unary("amprewrite_quantise_cotangent", _tangent, quantise_operand)
