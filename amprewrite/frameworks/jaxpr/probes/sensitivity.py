"""First-order sensitivity of the outputs of a JAX program to each rounding.

The program runs once in full precision with a probe on every value that may be rounded,
and is differentiated backwards from random directions in the outputs. It runs op by op,
with small kernels that are compiled once for all equal layers; JAX's residuals for the
backward pass are held in full precision meanwhile.

A probe is an identity that takes a value and a token, a number without effect. For a
direction ``r`` in the outputs the derivative of ``r . y`` by the token is
``g . delta``: the gradient ``g`` at the value, times the error ``delta`` of rounding
it. A loop has one token for all its iterations, with the sum over them as derivative,
as the errors of all iterations add up.

Reverse mode cannot differentiate a loop of unknown length: it runs its observed number
of iterations. A custom rule is the user's, and may be no derivative (it may clip
gradients, or pass them through a ``round``), so the body itself is differentiated; the
rule is used where that gives no number, as for a norm at zero, or where the body cannot
be differentiated.

A low kernel also rounds inside: a literal number is rounded with its op, and some
primitives are computed in stages, each of which is rounded. Their operands are taken
unrounded, because the rounding of these has probes of its own.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from typing import Any

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.execute.sensitivity import (
    FAILURES,
    no_floats,
    no_gradient,
    not_finite,
    sensitivity_of,
    value_of,
)
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env, Turn
from amprewrite.frameworks.jaxpr.interpret.interpreter import number
from amprewrite.frameworks.jaxpr.probes.full_precision import (
    Exact,
    Sample,
    count_iterations,
    is_inexact,
)
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
    names_of,
)
from amprewrite.ir import Op
from amprewrite.measure.runs import Run
from amprewrite.plan.sensitivity import EightBits, Key, Probes, Sensitivity
from amprewrite.policy.model import Scaling

Round = Callable[[Any], Any]
"""Function that rounds an array to low, and returns it in full precision."""


def with_rounded_numbers(step: Step, low: str, full: str) -> Step:
    """Return ``step`` with its numbers of dtype ``full`` rounded to ``low``.

    It is ``step`` itself if no number changes.
    """

    def rounded(atom: Atom) -> Atom:
        if not isinstance(atom, Number) or atom.dtype != full:
            return atom
        value = np.asarray(number(atom.value, low), jnp.dtype(full))
        same = np.array_equal(value, np.asarray(atom.value), equal_nan=True)
        return atom if same else replace(atom, value=value)

    atoms = tuple(map(rounded, step.operands))
    changed = any(a is not b for a, b in zip(atoms, step.operands, strict=True))
    return replace(step, operands=atoms) if changed else step


def _power(value: Any, params: Mapping[str, Any], low: Round) -> Any:
    """Return the power by repeated squaring, as JAX lowers it to products."""
    exponent = abs(params["y"])
    made, square = None, value
    while exponent:
        if exponent & 1:
            made = square if made is None else low(made * square)
        exponent >>= 1
        if exponent:
            square = low(square * square)
    if made is None:
        return jnp.ones_like(value)
    return 1 / made if params["y"] < 0 else made


def _logistic(value: Any, params: Mapping[str, Any], low: Round) -> Any:
    """Return ``1 / (1 + exp(-x))``, the expansion that XLA uses."""
    del params
    return 1 / low(1 + low(jnp.exp(-value)))


STAGED: Mapping[str, Callable[[Any, Mapping[str, Any], Round], Any]] = {
    "integer_pow": _power,
    "logistic": _logistic,
}
"""Primitives that are rounded between their stages, with the staged computation.

Of the unary primitives of ``jax.lax``, compiled by XLA on a CPU, only these had an
error 1.2 times that of rounding the result once, or more, in bfloat16 and float16;
except for ``erf_inv``, a polynomial without so few stages.
"""


UNDIFFERENTIATED = (AssertionError, *FAILURES)
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
        except UNDIFFERENTIATED:
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
    except UNDIFFERENTIATED:
        return False
    return True


def _gradient_like(value: Any) -> Any:
    if is_inexact(dtype_name(value)):
        return jnp.zeros_like(value)
    return np.zeros(jnp.shape(value), jax.dtypes.float0)


@dataclass(frozen=True)
class Watched:
    """Results of watching the values of a program.

    Attributes:
        peaks: Largest magnitude of the values that low precision cannot represent.
        iterations: Trip counts of loops of unknown length, by the name of their step.
    """

    peaks: Mapping[str, float]
    iterations: Mapping[str, int]


def measure_sensitivity(
    sample: Sample,
    probes: Probes,
    factors: Mapping[str, float] | None,
    watched: Watched,
    directions: int | None = None,
) -> Sensitivity:
    """Return the error of every rounding in ``probes``.

    Args:
        sample: The program and its arguments.
        probes: The roundings to measure.
        factors: Factor on the error of each bounded output; one over the norm of all
            outputs gives relative errors. None for one over the norm of each.
        watched: Results of :func:`watch`.
        directions: Number of random directions in the outputs; None for the number in
            ``probes``.

    Raises:
        UnsupportedError: An op cannot be differentiated.
    """
    peaks = watched.peaks
    prober = _Pulled(sample, probes, factors, watched.iterations)
    rows = prober.rows(directions or probes.directions)
    beyond = {
        key
        for key in prober.keys
        if not isinstance(key, EightBits) and value_of(key) in peaks
    }
    columns = dict(zip(prober.keys, rows.T.tolist(), strict=True))
    return sensitivity_of(columns, probes, beyond, peaks)


def check_finite(sample: Sample, reference: Run, bounded: Container[str]) -> None:
    """Check that there are outputs to bound, and that they are finite.

    Args:
        sample: The program and its arguments.
        reference: Its outputs in full precision.
        bounded: Paths of the outputs that are bounded; the others may be infinite.

    Raises:
        ToleranceError: An output has NaN or infinities in full precision already.
        UnsupportedError: No output is a float.
    """
    if not reference.outputs:
        raise no_floats("function")
    for path, array in reference.outputs.items():
        if path in bounded and not np.isfinite(array).all():
            raise _not_finite(sample, path, has_nan=bool(np.isnan(array).any()))


def watch(sample: Sample, probes: Probes) -> Watched:
    """Run a program to find peaks and trip counts, if they are needed.

    Args:
        sample: The program and its arguments.
        probes: The roundings to measure.
    """
    limit = float(format_of(probes.low).max)
    narrow = limit < float(format_of(probes.full).max) / 2
    steps = all_steps(sample.program.steps)
    if not narrow and not any(step.primitive == "while" for step in steps):
        return Watched({}, {})
    names = {value_of(key) for key in probes.keys if not isinstance(key, EightBits)}
    peaks: dict[str, float] = {}

    def look(op: str, name: str, value: Any) -> None:
        del op
        if not narrow or name not in names - probes.saturated or not value.size:
            return
        sizes = jnp.abs(value)
        peak = float(jnp.max(jnp.where(jnp.isfinite(sizes), sizes, 0)))
        if peak > limit:
            peaks[name] = max(peak, peaks.get(name, 0.0))

    iterations = count_iterations(sample, look)
    return Watched(peaks, iterations)


class _Pulled:
    """A probed program, pulled back from random directions in its outputs."""

    def __init__(
        self,
        sample: Sample,
        probes: Probes,
        factors: Mapping[str, float] | None,
        iterations: Mapping[str, int],
    ) -> None:
        self.sample, self.factors, self.iterations = sample, factors, iterations
        self.probes, self.keys = probes, probes.keys
        self.prober: Prober | None = None
        self.scales: list[float] = []
        self.paths: list[str] = []

    def rows(self, directions: int) -> Any:
        """Return ``g . delta`` by direction and key."""
        tokens = [jnp.zeros((), jnp.float32) for _ in self.keys]
        try:
            made, pull = jax.vjp(self._outputs, tokens)
            factors = self._relative(made) if self.factors is None else self.factors
            self.scales = [factors[path] for path in self.paths]
            if any(s.primitive == "shard_map" for s in all_steps(self._steps)):
                # Op by op, JAX compiles the body of a manual mesh at each call.
                pull = partial(jax.jit(lambda pull, rays: pull(rays)), pull)
            numbers = sum(part.size for part in made)
            # a single number has one direction
            count = directions if numbers > 1 else 1
            rows = [pull(self._rays(made, i, numbers))[0] for i in range(count)]
        except UNDIFFERENTIATED as error:
            raise self._blamed(error) from error
        found = np.asarray([list(map(float, row)) for row in rows], np.float64)
        return found.reshape(count, len(self.keys))

    @property
    def _steps(self) -> tuple[Step, ...]:
        return self.sample.program.steps

    def _outputs(self, tokens: Sequence[Any]) -> list[Any]:
        """Return the bounded outputs, as arrays of real numbers."""
        named = dict(zip(self.keys, tokens, strict=True))
        program = self.sample.program
        prober = Prober(program, self.probes, named, self.iterations)
        self.prober = prober
        made = self.sample.named(prober(prober.inputs(self.sample.inputs)))
        counted = made if self.factors is None else self.factors
        floats = [path for path in counted if is_inexact(dtype_name(made[path]))]
        parts = {path: _parts(made[path]) for path in floats}
        self.paths = [path for path in parts for _ in parts[path]]
        return [part for found in parts.values() for part in found]

    def _relative(self, made: Sequence[Any]) -> dict[str, float]:
        """Return the factors that make each output's error relative to its norm."""
        squares: dict[str, float] = dict.fromkeys(self.paths, 0.0)
        for path, part in zip(self.paths, made, strict=True):
            squares[path] += float(np.sum(np.square(np.asarray(part, np.float64))))
        return {
            path: 1 / sqrt(square) if 0.0 < square < inf else 0.0
            for path, square in squares.items()
        }

    def _rays(self, made: Sequence[Any], direction: int, numbers: int) -> list[Any]:
        """Return a random direction in the outputs, in units of the error."""
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), direction)
        rays: list[Any] = []
        for position, (part, scale) in enumerate(zip(made, self.scales, strict=True)):
            drawn = jax.random.fold_in(key, position)
            ray = jax.random.normal(drawn, part.shape, jnp.float32)
            ray = ray if numbers > 1 else jnp.ones_like(ray)
            rays.append((ray * scale).astype(part.dtype))
        return rays

    def _blamed(self, error: Exception) -> UnsupportedError:
        """Return the error about an op without a derivative, with its name."""
        text, graph = str(error), self.sample.graph
        failed = self.prober.failed if self.prober else None
        suspects = [failed] if failed else self._steps
        ops = [
            graph.op_by_name[step.name]
            for step in all_steps(tuple(suspects))
            if step.name in graph.op_by_name
        ]
        named = [op for op in ops if _is_named(op, text)]
        certain = [op for op in ops if op.fence or (failed and not failed.bodies)]
        op = next(iter((*named, *certain)), None)
        return no_gradient(op, error, "give it a rule with jax.custom_vjp")


def _is_named(op: Op, text: str) -> bool:
    return op.native in text or op.native.replace("_", " ") in text.lower()


def _parts(value: Any) -> list[Any]:
    """Return an output as arrays of real numbers."""
    held = jnp.asarray(value)
    return [held] if is_float(dtype_name(held)) else [held.real, held.imag]


def _not_finite(sample: Sample, path: str, *, has_nan: bool) -> ToleranceError:
    """Return the error of a program that is not finite in full precision."""
    kind, test = ("NaN", jnp.isnan) if has_nan else ("infinities", jnp.isinf)
    first: list[str] = []

    def look(op: str, name: str, value: Any) -> None:
        del name
        if not first and bool(jnp.any(test(value))):
            first.append(op)

    count_iterations(sample, look)
    op = sample.graph.op_by_name[first[0]] if first and first[0] else None
    return not_finite(path, kind, op, "function")
