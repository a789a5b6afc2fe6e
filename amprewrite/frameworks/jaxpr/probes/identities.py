"""Probes: identities with a derivative that is the effect of a rounding.

A probe takes a value and a token, a number without effect. For a direction ``r`` in the
outputs the derivative of ``r . y`` by the token is ``g . delta``: the gradient ``g`` at
the value, times the error ``delta`` of rounding it. A loop has one token for all its
iterations, with the sum over them as derivative, as the errors of all iterations add
up.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact
from amprewrite.frameworks.jaxpr.probes.kernel_rounding import (
    STAGED,
    with_rounded_numbers,
)
from amprewrite.frameworks.jaxpr.program.program import Program, Step
from amprewrite.plan.sensitivity import EightBits, Key, Probes
from amprewrite.policy.contract import Scaling

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

    def fed(self, name: str, op: str, value: Any) -> Any:
        """Return a value through a probe, if ``op`` may read it low."""
        found = self._probed((name, op), name, value)
        eight = self.probes.eight_bits_at(name, op)
        return found if eight is None else self._probed(eight, name, found)

    def made(self, name: str, value: Any) -> Any:
        """Return a value through a probe, if it may be stored low."""
        return self._probed(name, name, value)

    def computed(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step, with probes on all roundings of its kernel."""
        results = self.evaluate(step, operands)
        probed = self.tokens.keys() & step.results
        inner = self._in_stages(step, operands) if probed else []
        if not inner:
            return list(map(self.made, step.results, results))
        rows = zip(step.results, results, inner, strict=True)
        return [self._probed(name, name, value, low) for name, value, low in rows]

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
            return self.evaluate(changed, fixed)
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

    def plain(self, step: Step, env: Env) -> list[Any]:
        """Return the results of a step without bodies."""
        (*_, atom) = (None, *step.operands)
        if step.primitive != "stop_gradient" or not isinstance(atom, str):
            return super().plain(step, env)
        # an error passes as through any move
        value = self.fed(atom, step.name, env[atom])
        return [self.made(step.results[0], value)]
