"""Run bodies in a way that reverse-mode differentiation can handle.

A loop of unknown length runs its observed number of iterations. A custom rule is the
user's, and may be no derivative (it may clip gradients, or pass them through a
``round``), so the body itself is differentiated; the rule is used where that gives no
number, as for a norm at zero, or where the body cannot be differentiated.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env, Turn
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.probes.identities import FAILURES, Prober
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import (
    Step,
    all_steps,
    names_of,
)
from amprewrite.plan.sensitivity import Key, Probes


class ReverseProber(Prober):
    """Executor with probes that reverse mode can differentiate."""

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        """Run a loop with a known number of iterations, if it carries floats."""
        carried = any(is_inexact(dtype_name(v.aval)) for v in step.eqn.outvars)
        if not carried or step.name not in self.iterations:
            return super().on_loop(step, test, turn, start)

        def go(carry: list[Any], _: None) -> tuple[list[Any], None]:
            return lax.cond(test(carry), turn, lambda ended: ended, carry), None

        return lax.scan(go, start, None, length=self.iterations[step.name])[0]

    def custom_jvp(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a custom rule's body with probes, and the rule's derivative as fallback.

        Args:
            step: A custom JVP or VJP function.
            env: Values outside of it.
        """
        names = list(dict.fromkeys(names_of(step.operands)))
        keys = [key for key in _keys(step, self.probes) if key in self.tokens]
        tokens = [self.tokens[key] for key in keys]
        outer, values = self.constants(env), [env[name] for name in names]

        def body(tokens: list[Any], *values: Any) -> list[Any]:
            inner = {**outer, **dict(zip(names, values, strict=True))}
            with self.using(dict(zip(keys, tokens, strict=True))):
                return self.run_in_place(step, inner)

        def rule(*values: Any) -> list[Any]:
            inner = {**outer, **dict(zip(names, values, strict=True))}
            return list(Exact(self.program).on_step(step, inner))

        has_body = _is_differentiable(body, tokens, *values)
        has_rule = _is_differentiable(rule, *values)
        self.failed = None  # a failure of the trial only
        if has_body and has_rule:
            return _beside(body, rule)(tokens, *values)
        return rule(*values) if has_rule else body(tokens, *values)

    custom_vjp = custom_jvp


def _keys(step: Step, probes: Probes) -> Iterator[Key]:
    """Yield the rounding keys in the bodies of a step, without repetition."""
    found: dict[Key, None] = {}
    for inner in all_steps((step,)):
        found.update(dict.fromkeys(inner.results))
        if not inner.bodies:
            names = names_of(inner.operands)
            found.update({(a, inner.name): None for a in names})
            eight = (probes.eight_bits_at(a, inner.name) for a in names)
            found.update({key: None for key in eight if key is not None})
        boundaries = [c for body in inner.bodies for c in body.enters]
        for boundary in (*boundaries, *inner.leaves):
            if boundary is not None:
                found[boundary.makes] = None
                reads = names_of(boundary.reads)
                found.update({(a, boundary.op): None for a in reads})
    yield from found


def _beside(body: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``body`` with its own derivative, or that of ``rule`` where it has none.

    Args:
        body: Function of tokens and arrays.
        rule: Function of the same arrays, with the same results.
    """

    def forward(tokens: list[Any], *given: Any) -> tuple[Any, Any]:
        made, pull = jax.vjp(body, tokens, *given)
        return made, (pull, jax.vjp(rule, *given)[1])

    def backward(pulls: tuple[Any, Any], grads: Any) -> tuple[Any, ...]:
        moved, *own = pulls[0](grads)
        theirs = pulls[1](grads)
        return moved, *map(_finite, own, theirs)

    both = jax.custom_vjp(body)
    both.defvjp(forward, backward)
    return both


def _finite(first: Any, second: Any) -> Any:
    if not is_inexact(dtype_name(first)):
        return first
    return jnp.where(jnp.isfinite(first), first, second)


def _is_differentiable(function: Callable[..., Any], *operands: Any) -> bool:
    """Return whether JAX can differentiate ``function``, without computing it."""

    def pulled(*given: Any) -> None:
        made, pull = jax.vjp(function, *given)
        pull([_gradient_like(x) for x in made])

    try:
        jax.eval_shape(pulled, *operands)
    except FAILURES:
        return False
    return True


def _gradient_like(value: Any) -> Any:
    if is_inexact(dtype_name(value)):
        return jnp.zeros_like(value)
    return np.zeros(jnp.shape(value), jax.dtypes.float0)
