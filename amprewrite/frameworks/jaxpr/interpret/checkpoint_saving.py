"""Make ``jax.checkpoint`` policies treat our primitives as the JAX ones they replace.

A policy is asked about each primitive of a checkpointed body that is differentiated,
and matches the ones that it knows, such as ``dot_general``. Asked about the replaced
primitive, it saves the same results as in a program that was not rewritten.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from amprewrite.frameworks.jaxpr.compat import checkpoint_policies
from amprewrite.frameworks.jaxpr.compat.primitives import bind
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, partial_eval

Plain = tuple[Any, Sequence[Any], Mapping[str, Any]]
"""Primitive, types of its operands, and its parameters."""

Rule = tuple[Any, Any, list[bool], list[bool], list[Any]]
"""Result of a partial evaluation rule of JAX.

The equations of the forward and of the backward pass; flags of results that are unknown
in the forward pass, and of those that exist in the backward pass; and the saved values.
"""


def show_policies(primitive: Any, plainly: Callable[..., Plain]) -> None:
    """Make policies see another primitive in place of one with a single result.

    Args:
        primitive: The primitive in the program.
        plainly: Returns the primitive that policies see, from the types of the operands
            and the parameters.
    """

    def rule(saveable: Any, unknown: list[bool], there: list[bool], eqn: Any) -> Rule:
        missing = [
            x
            for x, is_there in zip(eqn.invars, there, strict=True)
            if not is_there and not isinstance(x, jex.Literal)
        ]
        if any(unknown):
            return None, eqn, [True], [True], missing
        other, avals, params = plainly(*(x.aval for x in eqn.invars), **eqn.params)
        found = saveable(other, *avals, **params)
        if checkpoint_policies.is_saved(found):
            return eqn, None, [False], [False], []
        places = checkpoint_policies.offloaded(found)
        if places is not None:
            return _offloaded(eqn, *places)
        return eqn, eqn, [False], [True], missing

    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def _offloaded(eqn: Any, home: Any, away: Any) -> Rule:
    """Return the rule of an equation with its result offloaded to another memory."""

    def forward(*operands: Any) -> tuple[Any, Any]:
        (made,) = bind(eqn.primitive, operands, eqn.params)
        return made, jax.device_put(made, away)

    known = _one_equation(jax.jit(forward), [x.aval for x in eqn.invars])
    (saved,) = known.outvars[1:]
    back = _one_equation(partial(jax.device_put, device=home), [saved.aval])
    return (
        known.replace(invars=eqn.invars, outvars=[*eqn.outvars, saved]),
        back.replace(invars=[saved], outvars=eqn.outvars),
        [False],
        [True],
        [saved],
    )


def _one_equation(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Return the equation traced from a function on arrays of given types."""
    (eqn,) = jax.make_jaxpr(function)(*avals).jaxpr.eqns
    return eqn
