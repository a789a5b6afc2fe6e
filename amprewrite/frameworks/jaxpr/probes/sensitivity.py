"""First-order sensitivity of the outputs of a JAX program to each rounding.

The program runs once in full precision with a probe on every value that may be rounded,
and is differentiated backwards from random directions in the outputs; see
:mod:`identities`. It runs op by op, with small kernels that are compiled once for all
equal layers; JAX's residuals for the backward pass are held in full precision
meanwhile.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.probes.full_precision import Sample
from amprewrite.frameworks.jaxpr.probes.identities import FAILURES, Prober
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.probes.value_watch import count_iterations
from amprewrite.frameworks.jaxpr.program.program import Step, all_steps, dtype_name
from amprewrite.ir import Op
from amprewrite.measure.runs import Run
from amprewrite.plan.sensitivity import EightBits, Key, Probes, Sensitivity


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
    rows, count = prober.rows(directions or probes.directions)
    every: dict[Key, float] = {}
    for key, row in zip(prober.keys, rows.T, strict=True):
        square = float(np.mean(np.square(row)))
        beyond = not isinstance(key, EightBits) and _name(key) in peaks
        every[key] = inf if beyond or not isfinite(square) else square
    return Sensitivity(
        {k: error for k, error in every.items() if isinstance(k, str)},
        {k: error for k, error in every.items() if isinstance(k, tuple)},
        count,
        peaks,
        probes.weights,
        {k: tuple(map(float, row)) for k, row in zip(prober.keys, rows.T, strict=True)},
        {k: error for k, error in every.items() if isinstance(k, EightBits)},
    )


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
        msg = "tolerance bounds the error of float outputs; this function gives none"
        raise UnsupportedError(msg)
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
    names = {_name(key) for key in probes.keys if not isinstance(key, EightBits)}
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


def _name(key: str | tuple[str, str]) -> str:
    """Return the name of the rounded value."""
    return key if isinstance(key, str) else key[0]


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

    def rows(self, directions: int) -> tuple[Any, int]:
        """Return ``g . delta`` by direction and key, and the number of directions."""
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
        except FAILURES as error:
            raise self._blamed(error) from error
        found = np.asarray([list(map(float, row)) for row in rows], np.float64)
        return found.reshape(count, len(self.keys)), count

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
        line = text.strip().partition("\n")[0]
        where = ", ".join(map(_place, [*named, *certain][:1])) or "an op of the model"
        msg = (
            f"tolerance needs gradients, and {where} cannot be differentiated: "
            f"{line}; give it a rule with jax.custom_vjp, or leave tolerance=None"
        )
        return UnsupportedError(msg)


def _is_named(op: Op, text: str) -> bool:
    return op.native in text or op.native.replace("_", " ") in text.lower()


def _parts(value: Any) -> list[Any]:
    """Return an output as arrays of real numbers."""
    held = jnp.asarray(value)
    return [held] if is_float(dtype_name(held)) else [held.real, held.imag]


def _place(op: Op) -> str:
    where = op.source or op.path
    return f"{op.native} (%{op.name})" + (f" at {where}" if where else "")


def _not_finite(sample: Sample, path: str, *, has_nan: bool) -> ToleranceError:
    """Return the error of a program that is not finite in full precision."""
    kind, test = ("NaN", jnp.isnan) if has_nan else ("infinities", jnp.isinf)
    first: list[str] = []

    def look(op: str, name: str, value: Any) -> None:
        del name
        if not first and bool(jnp.any(test(value))):
            first.append(op)

    count_iterations(sample, look)
    ops = [sample.graph.op_by_name[name] for name in first if name]
    maker = f"; the first are made by {_place(ops[0])}" if ops else ""
    msg = (
        f"output {path} has {kind} in full precision already{maker}; give arguments "
        f"for which the function is finite"
    )
    return ToleranceError(msg)
