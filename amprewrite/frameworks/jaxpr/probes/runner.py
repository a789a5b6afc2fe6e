"""Run a JAX function, or a program by a plan, on one set of arguments."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.capture.trace import named_arrays
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Turn
from amprewrite.frameworks.jaxpr.interpret.interpreter import Writer
from amprewrite.frameworks.jaxpr.interpret.pipeline import Prepared
from amprewrite.frameworks.jaxpr.probes.full_precision import Sample, is_inexact
from amprewrite.frameworks.jaxpr.program.program import Program, Step, dtype_name
from amprewrite.measure.runs import Array, Run
from amprewrite.plan import Decision

Flat = Callable[..., Any]
"""Function of the arrays of a call, in order; it returns the call's result."""


def to_array(value: Any) -> Array:
    """Return a float array as f64; a complex one as pairs in a new last dimension."""
    held = np.asarray(value)
    if np.iscomplexobj(held):
        wide = held.astype(np.complex128)
        return np.stack([wide.real, wide.imag], axis=-1)
    return held.astype(np.float64)


@dataclass(frozen=True)
class Runner:
    """Runner of functions on one set of arrays.

    Attributes:
        arrays: The arrays of the call.
        names: Their names.
        trained: Positions of the arrays that get gradients; empty for none.
        scale: Factor on the loss, divided out of the gradients again.
        inputs: Positions of the trained arrays that are inputs of the model, no
            parameters.
    """

    arrays: Sequence[Any]
    names: Sequence[str]
    trained: Sequence[int] = ()
    scale: float = 1.0
    inputs: frozenset[int] = frozenset()

    def run(
        self,
        function: Flat,
        arrays: Sequence[Any] | None = None,
        *,
        jitted: bool,
        derived_jitted: bool = True,
    ) -> Run:
        """Call ``function`` and return its results, with gradients if requested.

        Args:
            function: Function of the arrays.
            arrays: The arrays in other dtypes; None to use those of the call.
            jitted: Whether it is compiled as a whole.
            derived_jitted: Whether its derivative is; op by op takes much longer.
        """
        given = self.arrays if arrays is None else arrays
        order: list[str] = []

        def named(*held: Any) -> dict[str, Any]:
            found = named_arrays(function(*held))
            order[:] = found
            return found

        made = (jax.jit(named) if jitted else named)(*given)
        return replace(
            run_of({name: made[name] for name in order}),  # jit sorts them
            gradients=self._gradients(named, given, jitted=derived_jitted),
            inputs=frozenset(self.names[i] for i in self.trained if i in self.inputs),
        )

    def _gradients(
        self, named: Flat, given: Sequence[Any], *, jitted: bool
    ) -> dict[str, Array]:
        """Return the gradients of :func:`loss_of` by the names of the arrays."""
        if not self.trained:
            return {}

        def loss(*held: Any) -> Any:
            return loss_of(named(*held)) * self.scale

        derive = jax.grad(loss, argnums=tuple(self.trained))
        found = (jax.jit(derive) if jitted else derive)(*map(jnp.asarray, given))
        return {
            self.names[position]: to_array(gradient) / self.scale
            for position, gradient in zip(self.trained, found, strict=True)
        }


def run_of(found: Mapping[str, Any]) -> Run:
    """Return a run with these outputs, by their paths."""
    dtypes = {name: dtype_name(x) for name, x in found.items()}
    kinds = {name: is_inexact(dtype) for name, dtype in dtypes.items()}
    return Run(
        outputs={name: to_array(x) for name, x in found.items() if kinds[name]},
        dtypes=dtypes,
        others={name: _plain(x) for name, x in found.items() if not kinds[name]},
    )


def trained_positions(
    arrays: Sequence[Any], kinds: Mapping[int, str]
) -> tuple[int, ...]:
    """Return the positions of the arrays that are trained.

    They are the parameters of a module, and all floats of a function.

    Args:
        arrays: The arrays of a call.
        kinds: Kinds of the inputs of a module, by position; empty for a function.
    """
    floats = float_positions(arrays)
    return tuple(i for i in floats if not kinds or kinds.get(i) == "parameter")


def float_positions(arrays: Sequence[Any]) -> list[int]:
    """Return the positions of the arrays of floats."""
    return [i for i, x in enumerate(arrays) if is_float(dtype_name(x))]


def _plain(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def loss_of(found: dict[str, Any]) -> Any:
    """Return the mean square distance of the float outputs to fixed random targets."""
    total: Any = jnp.zeros((), jnp.float32)
    for number, value in enumerate(found.values()):
        if is_float(dtype_name(value)) and value.size:
            wide = jnp.promote_types(value.dtype, jnp.float32)
            target = np.random.default_rng(number).standard_normal(value.shape)
            distance = value.astype(wide) - jnp.asarray(target, wide)
            total = total + jnp.mean(distance * distance)
    return total


OPTIONS = {"xla_allow_excess_precision": False}
"""Compiler options that keep the plan's roundings in fused kernels."""

Written = Callable[[Program, list[Any]], list[Any]]
"""Function from a program and its inputs to its outputs."""


def run_planned(
    sample: Sample, function: Written, trained: Mapping[int, str] | None = None
) -> Run:
    """Run a program, compiled, with the roundings of its plan.

    Args:
        sample: The program and its arrays.
        function: Runs a program.
        trained: Names of the arrays that get gradients, by position.
    """
    derived = trained or {}
    names, compiled = _compiled(
        sample, lambda program, inputs, _: function(program, inputs), derived
    )
    gradients, made = compiled(None)
    pairs = zip(names, made, strict=True)
    floats = {name: x for name, x in pairs if is_inexact(dtype_name(x))}
    return Run(
        {name: to_array(value) for name, value in floats.items()},
        gradients=_named(derived, gradients),
    )


def one_by_one(
    context: Prepared, sample: Sample, trained: Mapping[int, str]
) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield gradients with one contraction in 8 bits at a time, after those with none.

    One program is compiled, with a switch for each contraction.

    Args:
        context: The program, by a plan with all of them in 8 bits.
        sample: The program and its arrays.
        trained: Names of the arrays that get gradients, by position.
    """
    ops = [decision.op for decision in context.plan.quantised]

    def switched(program: Program, inputs: list[Any], switches: Any) -> list[Any]:
        on = dict(zip(ops, switches, strict=True))
        return _Switched(replace(context, program=program), on)(inputs)

    _, compiled = _compiled(sample, switched, trained)
    for op in ("", *ops):
        gradients, _ = compiled([jnp.asarray(name == op) for name in ops])
        yield op, _named(trained, gradients)


class _Switched(Writer):
    """Executor with a switch for each contraction that rounds to 8 bits."""

    def __init__(self, context: Prepared, on: Mapping[str, Any]) -> None:
        super().__init__(context)
        self.on = on

    def rounded_factors(self, decision: Decision, operands: list[Any]) -> list[Any]:
        rounded = super().rounded_factors(decision, operands)
        pairs = zip(rounded, operands, strict=True)
        return [jnp.where(self.on[decision.op], *pair) for pair in pairs]

    def rounded_cotangent(self, decision: Decision, result: Any) -> Any:
        rounded = super().rounded_cotangent(decision, result)
        return jnp.where(self.on[decision.op], rounded, result)


PATIENCE = 4
"""Limit on a loop's iterations, as a multiple of those in full precision."""


class EndingWriter(Writer):
    """Executor of a plan with a limit on iterations; a loop that exceeds it gives NaN.

    A loop that iterates until a change is small may never end in low precision.
    """

    def __init__(self, context: Prepared, iterations: Mapping[str, int]) -> None:
        """Store the program, and its trip counts in full precision, by step."""
        super().__init__(context)
        self.iterations = iterations

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        """Run a loop of unknown length up to its limit."""
        if step.name not in self.iterations:
            return super().on_loop(step, test, turn, start)
        return run_ending(test, turn, start, self.iterations[step.name])


def counted(
    test: Turn, turn: Turn, start: list[Any], most: int
) -> tuple[Any, list[Any]]:
    """Run a loop up to a number of steps; return the number, and its last carry.

    Args:
        test: Function of a carry that returns whether the loop goes on.
        turn: Function of a carry that returns the next one.
        start: The first carry.
        most: Largest number of steps, an int32.
    """

    def goes_on(state: tuple[Any, list[Any]]) -> Any:
        return (state[0] < most) & test(state[1])

    def next_state(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        return state[0] + 1, turn(state[1])

    return lax.while_loop(goes_on, next_state, (jnp.int32(0), start))


def run_ending(test: Turn, turn: Turn, start: list[Any], iterations: int) -> list[Any]:
    """Run a loop that ends; its floats are NaN if it was ended by the limit.

    Args:
        test: Function of a carry that returns whether the loop goes on.
        turn: Function of a carry that returns the next one.
        start: The first carry.
        iterations: Its trip count in full precision.
    """
    _, carry = counted(test, turn, start, PATIENCE * (iterations + 1))
    unended = test(carry)
    return [
        jnp.where(unended, jnp.asarray(jnp.nan, value.dtype), value)
        if is_float(dtype_name(value))
        else value
        for value in carry
    ]


def _compiled(
    sample: Sample,
    function: Callable[[Program, list[Any], Any], list[Any]],
    trained: Mapping[int, str],
) -> tuple[list[str], Callable[[Any], tuple[Sequence[Any], list[Any]]]]:
    """Return a program's function of switches: gradients, and outputs.

    The names of the outputs are in the list beside it, after a call.
    """
    names: list[str] = []
    inputs, constants = list(sample.inputs), dict(sample.program.constants)

    def loss(
        held: list[Any], inputs: list[Any], constants: Any, switches: Any
    ) -> tuple[Any, list[Any]]:
        given = list(inputs)
        for place, array in zip(trained, held, strict=True):
            given[place] = array
        found = sample.named(function(sample.on(constants), given, switches))
        names[:] = found
        made = {name: jnp.asarray(value) for name, value in found.items()}
        return (loss_of(made) if trained else None), list(made.values())

    derive = jax.grad(loss, has_aux=True) if trained else loss
    program = jax.jit(derive, compiler_options=OPTIONS)

    def call(switches: Any) -> tuple[Sequence[Any], list[Any]]:
        held = [jnp.asarray(inputs[place]) for place in trained]
        return program(held, inputs, constants, switches)

    return names, call


def _named(trained: Mapping[int, str], gradients: Any) -> dict[str, Array]:
    """Return gradients by the names of their arrays."""
    if not trained:
        return {}
    pairs = zip(trained.values(), gradients, strict=True)
    return {name: to_array(gradient) for name, gradient in pairs}
