"""Probes: identities with a derivative that is the effect of a rounding.

A probe takes a value and a token, a number without effect. For a direction ``r`` in the
outputs the derivative of ``r . y`` by the token is ``g . delta``: the gradient ``g`` at
the value, times the error ``delta`` of rounding it. A loop has one token for all its
iterations, with the sum over them as derivative, as the errors of all iterations add
up.

Reverse mode cannot differentiate a loop of unknown length: it runs its observed number
of iterations. A custom rule is the user's, and may be no derivative (it may clip
gradients, or pass them through a ``round``), so the body itself is differentiated; the
rule is used where that gives no number, as for a norm at zero, or where the body cannot
be differentiated.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env, Turn
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.probes.kernel_rounding import (
    STAGED,
    with_rounded_numbers,
)
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.program.program import (
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
    names_of,
)
from amprewrite.plan.sensitivity import EightBits, Key, Probes
from amprewrite.policy.model import Scaling

FAILURES = (
    AssertionError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that JAX raises where it cannot differentiate."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a value to the low dtype, or to 8 bits, and back.

    Attributes:
        low: Name of the low dtype.
        saturates: Whether finite numbers stay finite.
        eight: Format and scale of a rounding to 8 bits instead; None to round to low.
    """

    low: str
    saturates: bool = False
    eight: tuple[str, Scaling] | None = None  # without its op: layers share kernels

    def rounded(self, value: Any) -> Any:
        """Return ``value`` rounded, in its own dtype."""
        if self.eight is not None:
            return quantise_scaled(value, *self.eight)
        # Without the barrier a compiler may leave both casts out.
        low = lax.optimization_barrier(value.astype(jnp.dtype(self.low)))
        return low.astype(value.dtype)

    def error(self, value: Any, made: Any = None) -> Any:
        """Return the rounding error of each element; 0 where it is not finite.

        Args:
            value: The array, in full precision.
            made: Value that the low kernel rounds instead; None if it rounds ``value``.
        """
        held = value if made is None else made
        finite = jnp.isfinite(value)
        if self.saturates:
            limit = float(jnp.finfo(jnp.dtype(self.low)).max)
            held = jnp.where(finite, jnp.clip(held, -limit, limit), value)
        return jnp.where(finite, self.rounded(held) - value, 0)


def _identity(value: Any, made: Any, token: Any, rounding: Rounding) -> Any:
    del made, token, rounding
    return value


def _forward(value: Any, made: Any, token: Any, rounding: Rounding) -> tuple[Any, Any]:
    del token, rounding
    return value, (value, made)


def _backward(rounding: Rounding, held: tuple[Any, Any], grad: Any) -> tuple[Any, ...]:
    value, made = held
    return _moved(rounding, value, made, grad)


@partial(jax.jit, static_argnums=0)  # one call for each probe, where JAX runs eagerly
def _moved(rounding: Rounding, value: Any, made: Any, grad: Any) -> tuple[Any, ...]:
    """Return the gradients of the value and of the token.

    A NaN gradient counts as zero: it arises where the infinite derivative of a root or
    a logarithm meets the zero of a ``where`` that drops its value.
    """
    grad = jnp.where(jnp.isnan(grad), 0, grad)
    error = rounding.error(value, made)
    moved = jnp.where(error == 0, 0, grad * error)  # where g is infinite, too
    return grad, None, jnp.sum(moved, dtype=jnp.float32)


_probe: Any = jax.custom_vjp(_identity, nondiff_argnums=(3,))
_probe.defvjp(_forward, _backward)


class Prober(Exact):
    """Executor of a program with a probe on every value that has a token.

    Attributes:
        tokens: The tokens by rounding key.
        iterations: Trip count of each loop, by the name of its step.
        failed: The innermost step that could not be differentiated.
        inner: Last values that low kernels round, by the name of their result.
    """

    def __init__(
        self,
        program: Program,
        probes: Probes,
        tokens: Mapping[Key, Any],
        iterations: Mapping[str, int],
    ) -> None:
        """Wrap the program with its tokens.

        Args:
            program: The program.
            probes: The roundings to measure.
            tokens: A zero for each rounding.
            iterations: Trip count of each loop.
        """
        super().__init__(program)
        self.rounding, self.saturated = Rounding(probes.low), probes.saturated
        self.probes, self.tokens = probes, tokens
        self.iterations = iterations
        self.failed: Step | None = None
        self.inner: dict[str, Any] = {}

    @contextmanager
    def using(self, tokens: Mapping[Key, Any]) -> Generator[None]:
        """Use only ``tokens`` in the context."""
        held, self.tokens = self.tokens, tokens
        try:
            yield
        finally:
            self.tokens = held

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a step, recording the innermost one that cannot be differentiated."""
        try:
            return super().on_step(step, env)
        except FAILURES:
            self.failed = self.failed or step
            raise

    def on_read(self, op: str, index: int, name: str, env: Env) -> Any:
        """Return a value through a probe, if ``op`` may read it low."""
        value = self._probed((name, op), name, super().on_read(op, index, name, env))
        eight = self.probes.eight_bits_at(name, op)
        return value if eight is None else self._probed(eight, name, value)

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        """Return a value through a probe, if it may be stored low."""
        name = boundary.makes
        return self._probed(name, name, super().on_pass(boundary, value))

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        """Return a result through a probe of all roundings of its kernel."""
        if step.bodies:  # it has passed a boundary, or a probe inside
            return value
        return self._probed(name, name, value, self.inner.pop(name, None))

    def evaluate(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step; an error passes a stopped gradient."""
        if step.primitive == "stop_gradient" and names_of(step.operands):
            return operands
        results = super().evaluate(step, operands)
        if self.tokens.keys() & step.results:
            inner = self._in_stages(step, operands)
            self.inner.update(zip(step.results, inner, strict=False))
        return results

    def _in_stages(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the last value that the low kernel rounds; empty if it is alone."""
        full = self.dtype_of(step.results[0])
        changed = with_rounded_numbers(step, self.rounding.low, full)
        staged = None if step.conjugates else STAGED.get(step.primitive)
        if changed is step and staged is None:
            return []
        fixed = [
            lax.stop_gradient(x) if isinstance(a, str) else self.number(changed, a)
            for a, x in zip(changed.operands, operands, strict=True)
        ]
        if staged is None:
            return super().evaluate(changed, fixed)
        (value,) = fixed
        return [staged(value, step.eqn.params, self.rounding.rounded)]

    def _probed(self, key: Key, name: str, value: Any, made: Any = None) -> Any:
        token = self.tokens.get(key)
        if token is None:
            return value
        rounding = (
            Rounding(self.rounding.low, eight=(key.format, key.scaling))
            if isinstance(key, EightBits)
            else Rounding(self.rounding.low, saturates=name in self.saturated)
        )
        return _probe(value, made, tracers.varying_as(token, value), rounding)

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
