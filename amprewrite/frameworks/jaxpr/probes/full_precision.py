"""Run a program as traced, in full precision or in other dtypes, and watch its values.

The function is traced as it is, and every value of a float dtype is replaced as the
program runs (:class:`Wide`): the reference of ``verify``. Calling it on wider arguments
would not suffice: values pinned by ``astype``, and closed-over ones, would stay narrow.

As the baseline of roundings (:class:`Exact`) it runs without printing, and contracts in
the precision of its operands even if a device would use fewer digits by default. Run op
by op, nothing compiled, it shows peaks, trip counts and failures: loops run one
iteration after the other, in order. Values inside a manual mesh are not observed, only
its results.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.execute.sensitivity import FAILURES
from amprewrite.frameworks.jaxpr.capture.trace import Call, named_arrays
from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.primitives import bind
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor, Turn
from amprewrite.frameworks.jaxpr.interpret.interpreter import abs_square, number
from amprewrite.frameworks.jaxpr.program.inline import SHARED, inline
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Number,
    Program,
    RegionBoundary,
    Step,
    dtype_name,
    names_of,
)
from amprewrite.ir import ProgramGraph

Dtypes = Mapping[str, str]
"""Replacements of float dtypes, by name."""

REDUCES = ("reduce", "reduce_window", "reduce_precision")
"""Fences that run in any dtype."""

DRAWS = ("bitcast_convert_type", "random_gamma")
"""Primitives with bits or random numbers that depend on the dtype."""


class Wide(ProgramExecutor):
    """Executor that binds every equation as traced, with replaced dtypes.

    Attributes:
        dtypes: Replacements of the dtypes of the program.
        traced_x64: Whether 64-bit types were enabled during the trace.
        kept: Steps that ran in the dtypes they were traced in, with their primitives.
    """

    def __init__(self, program: Program, dtypes: Dtypes) -> None:
        """Store the program, and the replacements of its dtypes."""
        super().__init__(program)
        self.dtypes = dtypes
        self.traced_x64: bool = jax.config.jax_enable_x64
        self.kept: dict[str, str] = {}

    def inputs(self, arrays: Iterable[Any]) -> list[Any]:
        """Return the arrays of a call in the dtypes in which the program reads them."""
        return list(map(self.enter, self.program.inputs, arrays))

    def other(self, dtype: str) -> str:
        """Return the replacement of ``dtype``."""
        return self.dtypes.get(dtype, dtype)

    def enter(self, name: str, value: Any) -> Any:
        """Return an array from outside in the dtype that the program reads.

        It is first rounded to the traced dtype, as JAX does in a call.
        """
        dtype = dtype_name(self.program.avals[name])
        if isinstance(value, (np.ndarray, np.generic)):
            value = jnp.asarray(value, jnp.dtype(dtype))
        return _as(value, self.other(dtype))

    def start(self, inputs: Iterable[Any]) -> Env:
        """Return the values that exist before the first step."""
        constants = self.program.constants.items()
        return super().start(inputs) | {n: self.enter(n, x) for n, x in constants}

    def output(self, atom: Atom, env: Env) -> Any:
        """Return one output."""
        return self.get(atom, env)

    def rule_dtype(self, aval: Any) -> str:
        """Return the dtype in which a custom rule receives a value of type ``aval``."""
        return self.other(dtype_name(aval))

    def literal(self, atom: Number) -> Any:
        """Return the value of a number, in the replaced dtype."""
        dtype = self.other(atom.dtype)
        if is_float(dtype):
            traced = np.asarray(atom.value, jnp.dtype(atom.dtype))  # rounded as there
            return number(traced, dtype)
        return atom.value if dtype == atom.dtype else np.asarray(atom.value, dtype)

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        """Return a value as it is on the other side of a boundary."""
        return _as(super().on_pass(boundary, value), self.dtype_of(boundary.makes))

    def evaluate(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step; in its traced dtypes if it has no others."""
        if step.chosen:  # a cast of full to full
            return operands
        results = None
        if not _is_pinned(step):
            try:
                results = self._bound(step, operands, self.dtypes)
            except FAILURES:
                results = None
        if results is None:
            traced = [dtype_name(var.aval) for var in step.eqn.invars]
            results = self._bound(step, list(map(_as, operands, traced)), {})
            if any(dtype in self.dtypes for dtype in traced):
                self.kept[step.name] = step.primitive
        pairs = zip(results, step.results, strict=True)
        return [_as(x, self.dtype_of(name)) for x, name in pairs]

    def converted(
        self,
        fun: Callable[..., list[Any]],
        operands: Sequence[Any],
        tangents: Iterable[int],
        exact: Iterable[int],
    ) -> Sequence[Any]:
        """Return the outputs of a custom rule in the replaced dtypes.

        It is traced with the dtypes that it was written for.
        """
        del tangents, exact  # tangents are values like others; a value has one dtype
        back = {wide: dtype for dtype, wide in reversed(list(self.dtypes.items()))}
        types: list[Any] = []
        for x in operands:
            name = dtype_name(x)
            chosen = jnp.dtype(back[name]) if name in back else x.dtype
            types.append(jax.ShapeDtypeStruct(x.shape, chosen))
        with jax.enable_x64(self.traced_x64):
            closed = jax.make_jaxpr(fun)(*types)
        inner = Wide(inline(closed), self.dtypes)
        inner.traced_x64, inner.kept = self.traced_x64, self.kept
        return inner(operands)

    def params(self, step: Step, dtypes: Dtypes) -> dict[str, Any]:
        """Return the parameters of a step, with ``dtypes`` in them replaced."""
        params = {
            key: _replaced(value, dtypes)
            for key, value in equations.bind_params(step.eqn).items()
        }
        if dtypes and isinstance(params.get("precision"), lax.DotAlgorithmPreset):
            params["precision"] = None  # a preset names dtypes
        return params

    def _bound(self, step: Step, operands: list[Any], dtypes: Dtypes) -> list[Any]:
        return bind(step.eqn.primitive, operands, self.params(step, dtypes))


def _is_pinned(step: Step) -> bool:
    """Return whether a step must run in its traced dtypes."""
    fenced = bool(step.fence) and step.primitive not in REDUCES
    bodied = step.primitive.startswith("scatter")  # its body is replaced
    return step.primitive in DRAWS or (fenced and not bodied)


def _as(value: Any, dtype: str) -> Any:
    """Return a float or complex ``value`` in ``dtype``; others as they are."""
    name = dtype_name(value)
    if name == dtype or not is_inexact(name):
        return value
    return lax.convert_element_type(value, jnp.dtype(dtype))


def is_inexact(dtype: str) -> bool:
    """Return whether a dtype is inexact: float or complex."""
    return is_float(dtype) or dtype in ("complex64", "complex128")


def _replaced(parameter: Any, dtypes: Dtypes) -> Any:
    """Return a parameter of an equation with the dtypes in it replaced."""
    if isinstance(parameter, np.dtype) and parameter.name in dtypes:
        return jnp.dtype(dtypes[parameter.name])
    if isinstance(parameter, jex.ClosedJaxpr):
        return _jaxpr_in(parameter, dtypes)
    if isinstance(parameter, jex.Jaxpr):
        return _jaxpr_in(jex.ClosedJaxpr(parameter, ()), dtypes).jaxpr
    return parameter


def _jaxpr_in(closed: Any, dtypes: Dtypes) -> Any:
    """Return a small body, such as the sum of a scatter, in other dtypes."""
    wide = Wide(inline(closed), dtypes)
    types = [
        jax.ShapeDtypeStruct(a.shape, jnp.dtype(wide.other(dtype_name(a))))
        for a in closed.in_avals
    ]
    return jax.make_jaxpr(lambda *args: wide(args))(*types)


PRINTS = frozenset(("debug_callback", "debug_print"))
"""Primitives that only print or report."""


@dataclass(frozen=True)
class Sample:
    """A program and the arrays of one call.

    Attributes:
        program: The program.
        graph: Its program graph.
        inputs: The arrays, in the program's order.
        result: Structure and names of the outputs.
    """

    program: Program
    graph: ProgramGraph
    inputs: Sequence[Any]
    result: "Result"

    def named(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return outputs of the program by their paths."""
        return self.result.named(outputs)

    def on(self, constants: Mapping[str, Any]) -> Program:
        """Return the program with other arrays for its closed-over ones.

        A compiled function copies its closed-over arrays into its code.
        """
        return replace(self.program, constants=constants)


@dataclass(frozen=True)
class Result:
    """Structure and names of a function's result.

    Attributes:
        call: Structure of the whole result.
        pick: Selects the user's part of it.
    """

    call: Call
    pick: Any

    def named(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the arrays by their paths."""
        return named_arrays(self.pick(self.call.arguments(list(outputs))))


class Exact(Wide):
    """Executor that binds every equation as traced, at full precision."""

    def __init__(self, program: Program) -> None:
        """Wrap the program."""
        super().__init__(program, {})

    def on_step(self, step: Step, env: Env) -> Sequence[Any]:
        """Return the results of a step; one that only prints is not run."""
        return () if step.primitive in PRINTS else super().on_step(step, env)

    def operands(self, step: Step, env: Env) -> list[Any]:
        """Return the operands of a step; a value that it reads twice is read once."""
        names = names_of(step.operands)
        read: dict[str, Any] = {}
        for index, name in enumerate(names):
            if name not in read:
                read[name] = self.on_read(step.name, index, name, env)
        dtypes = iter(step.wants or ("",) * len(names))
        return [
            _in_dtype(read[atom], next(dtypes))
            if isinstance(atom, str)
            else self.number(step, atom)
            for atom in step.operands
        ]

    def evaluate(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step on its operands, as they are."""
        if step.conjugates:
            return [abs_square(operands[0])]
        return super().evaluate(step, operands)

    def params(self, step: Step, dtypes: Dtypes) -> dict[str, Any]:
        """Return the parameters of a step, at the highest precision."""
        params = super().params(step, dtypes)
        if "precision" in params and params["precision"] is None:
            params["precision"] = (lax.Precision.HIGHEST,) * 2
        return params


def _in_dtype(value: Any, dtype: str) -> Any:
    """Return ``value`` in ``dtype``; as it is if that is empty."""
    if not dtype or dtype_name(value) == dtype:
        return value
    return lax.convert_element_type(value, jnp.dtype(dtype))


Look = Callable[[str, str, Any], None]
"""Callback for each float value: the name of its op, its own name, the value."""


def _unseen(op: str, name: str, value: Any) -> None:
    del op, name, value


def count_iterations(sample: Sample, look: Look = _unseen) -> Mapping[str, int]:
    """Run a program with a callback for its values; return the trip counts of loops.

    Args:
        sample: The program and its arguments.
        look: Callback for every float value, those from outside first.

    Returns:
        The largest trip count of each loop of unknown length, by its step's name.
    """
    watcher = _Watcher(sample, look)
    with tracers.evaluated_now(), jax.disable_jit():
        inputs = watcher.inputs(sample.inputs)
        for name, value in (*zip(sample.program.inputs, inputs, strict=True),):
            watcher.show("", name, value)
        for name, value in sample.program.constants.items():
            watcher.show("", name, value)
        watcher(inputs)
    return watcher.iterations


class _Watcher(Exact):
    in_place = frozenset((*SHARED, "custom_vjp_call"))

    def __init__(self, sample: Sample, look: Look) -> None:
        super().__init__(sample.program)
        self.look = look
        self.iterations: dict[str, int] = {}

    def show(self, op: str, name: str, value: Any) -> None:
        if is_inexact(dtype_name(value)) and not tracers.is_tracer(value):
            self.look(op, name, value)

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        if not step.bodies:
            self.show(step.name, name, value)
        return value

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        passed = super().on_pass(boundary, value)
        self.show(boundary.op, boundary.makes, passed)
        return passed

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        carry, iterations = start, 0
        while bool(jnp.asarray(test(carry))):
            carry = turn(carry)
            iterations += 1
        most = self.iterations.get(step.name, 0)
        self.iterations[step.name] = max(iterations, most)
        return carry

    def on_scan(
        self, step: Step, turn: Turn, carry: list[Any], slices: Any
    ) -> tuple[list[Any], Any]:
        """Run a loop iteration by iteration; JAX must trace a loop of no iterations."""
        with jax.disable_jit(step.eqn.params["length"] > 0):
            return super().on_scan(step, turn, carry, slices)
