"""Run a program with the factors of its scale plan.

Each equation is bound again, under whatever transformation the function is called in,
so that a scaled function is a plain JAX program to ``jit``, ``grad`` and ``vmap``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat import equations, name_stacks
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Number,
    RegionBoundary,
    Step,
)
from amprewrite.unit_scaling.graph import ScalePlan, Unit, resolve
from amprewrite.unit_scaling.graph.scales import OUTPUT
from amprewrite.unit_scaling.jax.reading.functions import Functional
from amprewrite.unit_scaling.jax.scale import scale

Env = dict[Any, Any]
"""Values by name; scaled ones by the op that reads them first, and the name."""
Factors = tuple[Any, Any]


class ScaleWriter:
    """Interpreter of one program with the factors of one plan.

    Attributes:
        reading: The program and its graph.
        before: Factors of operands: by op and by value, with the name of the unit.
        after: Factors of results, by value, with the op that makes it.
        leaving: Factors of what is returned, by value.
    """

    def __init__(
        self, program: Functional, units: Sequence[Unit], plan: ScalePlan
    ) -> None:
        """Find where factors stand; several at one place are multiplied."""
        self.reading = program.reading
        self.program = program.reading.program
        self.uniform = program.uniform
        self.before: dict[tuple[str, str, int], tuple[Any, Factors]] = {}
        self.after: dict[tuple[str, str], Factors] = {}
        self.leaving: dict[str, Factors] = {}
        named = {unit.name: unit for unit in units}
        for found in plan:
            factors = (found.forward, found.backward)
            if found.index == OUTPUT:
                self.leaving[found.value] = factors
                continue
            if found.index is None:
                key = (found.unit, found.value)
                self.after[key] = _times(self.after.get(key), factors)
                continue
            for place in self._places(program, named[found.unit], found):
                group = (found.unit, found.index, found.value)
                before = self.before.get(place)
                both = _times(before and before[1], factors)
                self.before[place] = (group, both)

    def _places(self, program: Functional, unit: Unit, found: Any) -> Iterable[Any]:
        """Yield each use of a value by a unit: op, value and operand index."""
        for op in unit.ops:
            function = program.functions.get(op.name)
            if function is None and found.index >= 0:
                yield op.name, found.value, found.index
                continue
            for name in function.members if function else (op.name,):
                yield name, found.value, -1

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs of the program on arrays."""
        program = self.program
        env: Env = dict(program.constants)
        env.update(zip(program.inputs, inputs, strict=True))
        self._steps(program.steps, env)
        for name, factors in self.leaving.items():
            env[name] = self._scaled(env[name], factors)
        return [self._output(atom, env) for atom in program.outputs]

    def _output(self, atom: Atom, env: Env) -> Any:
        if not isinstance(atom, Number):
            return env[atom]
        if atom.dtype == "float0":  # depends on no input
            return atom.value
        return jnp.asarray(atom.value, None if atom.weak else atom.dtype)

    def _steps(self, steps: Iterable[Step], env: Env) -> None:
        for step in steps:
            with name_stacks.place_of(step.eqn, step.stack), step.eqn.ctx.manager:
                made = self._step(step, env)
            env.update(zip(step.results, made, strict=True))

    def _step(self, step: Step, env: Env) -> Sequence[Any]:
        if step.bodies:
            return HANDLERS[step.primitive](self, step, env)
        params = equations.bind_params(step.eqn)
        found = step.eqn.primitive.bind(*self._operands(step, env), **params)
        results = list(found) if step.eqn.primitive.multiple_results else [found]
        pairs = zip(step.results, results, strict=True)
        return [self._made(step.name, name, value) for name, value in pairs]

    def _operands(self, step: Step, env: Env) -> list[Any]:
        index, values = 0, list[Any]()
        for atom in step.operands:
            if isinstance(atom, Number):
                values.append(atom.value)
                continue
            values.append(self._used(step.name, atom, index, env))
            index += atom not in self.uniform
        return values

    def _used(self, op: str, name: str, index: int, env: Env) -> Any:
        """Return a value as an op reads it."""
        found = self.before.get((op, name, -1)) or self.before.get((op, name, index))
        if found is None:
            return env[name]
        group, factors = found
        if group not in env:
            env[group] = self._scaled(env[name], factors)
        return env[group]

    def _made(self, op: str, name: str, value: Any) -> Any:
        """Return a result as other ops read it."""
        factors = self.after.get((op, name))
        return value if factors is None else self._scaled(value, factors)

    def _scaled(self, value: Any, factors: Factors) -> Any:
        forward, backward = (resolve(f, self._extent) for f in factors)
        return scale(value, forward, backward)

    def _extent(self, name: str, axis: int) -> Any:
        """Return an extent; one that is a symbol as a scalar of the program."""
        found = self.program.avals[name].shape[axis]
        return found if isinstance(found, int) else jnp.asarray(found, jnp.float32)

    def _pass(self, boundary: RegionBoundary, env: Env) -> Any:
        """Return the value that passes into or out of a body."""
        (atom,) = boundary.reads
        if isinstance(atom, Number):
            return jnp.asarray(atom.value, atom.dtype)
        return self._used(boundary.op, atom, 0, env)

    def scan(self, step: Step, env: Env) -> Sequence[Any]:
        """Run a loop with factors in its body."""
        (body,), params = step.bodies, step.eqn.params
        consts, carries = equations.scan_counts(step.eqn)
        outer = {name: env[name] for name in self.program.constants if name in env}
        parts: tuple[list[Any], ...] = ([], [], [])
        names: tuple[list[str], ...] = ([], [], [])
        for index, enter in enumerate(body.enters):
            if enter is not None:
                kind = (index >= consts) + (index >= consts + carries)
                parts[kind].append(self._pass(enter, env))
                names[kind].append(enter.makes)
        fixed = dict(zip(names[0], parts[0], strict=True))

        def turn(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            inner: Env = {**outer, **fixed}
            inner.update(zip(names[1], carry, strict=True))
            inner.update(zip(names[2], slices, strict=True))
            self._steps(body.steps, inner)
            left = [self._pass(leave, inner) for leave in step.leaves if leave]
            return left[:carries], left[carries:]

        carry, stacked = lax.scan(
            turn,
            parts[1],
            parts[2],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *stacked]

    def shared(
        self, step: Step, env: Env
    ) -> tuple[Callable[..., list[Any]], list[Any]]:
        """Return a body as a function of the outer values that it reads, and these."""
        (body,) = step.bodies
        names = list(dict.fromkeys(a for a in step.operands if isinstance(a, str)))
        constants = [name for name in self.program.constants if name in env]
        outer = {name: env[name] for name in constants}

        def run(*given: Any) -> list[Any]:
            inner: Env = {**outer, **dict(zip(names, given, strict=True))}
            self._steps(body.steps, inner)
            pairs = zip(body.outputs, step.leaves, strict=True)
            return [
                self._output(atom, inner) if leave is None else self._pass(leave, inner)
                for atom, leave in pairs
            ]

        return run, [env[name] for name in names]


def _checkpoint(writer: ScaleWriter, step: Step, env: Env) -> Sequence[Any]:
    run, values = writer.shared(step, env)
    params = step.eqn.params
    kept = jax.checkpoint(
        run, policy=params["policy"], prevent_cse=params["prevent_cse"]
    )
    return kept(*values)


def _jit(writer: ScaleWriter, step: Step, env: Env) -> Sequence[Any]:
    """Run a jit that fixes shardings; jits that only call are inlined."""
    run, values = writer.shared(step, env)
    names = [a if isinstance(a, str) else None for a in step.operands]
    firsts = [names.index(name) for name in dict.fromkeys(names) if name is not None]
    sharding = equations.sharding_argument
    given = [sharding(step.eqn.params["in_shardings"][i]) for i in firsts]
    left = [sharding(s) for s in step.eqn.params["out_shardings"]]
    return jax.jit(run, in_shardings=tuple(given), out_shardings=left)(*values)


HANDLERS: Mapping[str, Callable[[ScaleWriter, Step, Env], Sequence[Any]]] = {
    **dict.fromkeys(("checkpoint", "remat", "remat2"), _checkpoint),
    **dict.fromkeys(("jit", "pjit"), _jit),
    "scan": ScaleWriter.scan,
}
"""Functions that run steps with bodies, by primitive."""


def _times(one: Factors | None, other: Factors) -> Factors:
    """Return the products of two pairs of factors."""
    return other if one is None else (one[0] * other[0], one[1] * other[1])
