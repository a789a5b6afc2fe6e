"""Run a program by its plan: with its casts, each contraction in its precision.

A value has the dtype that it was produced in; each use casts it if the
plan reads it in another. Casts are bound separately for each use, so that the gradients
of several uses add up in full precision; XLA merges equal casts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from amprewrite.dtypes import format_of, is_float, itemsize
from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.frameworks.base import Planner
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.primitives import (
    as_weak,
    bind,
    convert,
    new_unary,
)
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.executor import Env, ProgramExecutor
from amprewrite.frameworks.jaxpr.interpret.contractions import (
    Binder,
    Contraction,
    binder,
    contract,
    contract_tangents,
)
from amprewrite.frameworks.jaxpr.program.program import (
    CONTRACTIONS,
    DTYPE_PARAMETERS,
    SUMMED_BACKWARDS,
    TYPED_BODIES,
    Number,
    Program,
    RegionBoundary,
    Step,
    all_steps,
    dtype_name,
    names_of,
)
from amprewrite.ir import ProgramGraph
from amprewrite.ir.graph import factor_indices
from amprewrite.plan import OUTPUT, Decision, Plan
from amprewrite.plan.comparing import compared

# Rounding of values: by casts, and of contractions to 8 bits.
#
# XLA keeps excess precision where it may (``xla_allow_excess_precision``, on by
# default): a processor without bfloat16 arithmetic computes in float32, and a cast back
# to float32 then returns the value from before the rounding. Another op that reads the
# same value in bfloat16 still gets it rounded, so that ``x == max(x, y)`` never held.
# Excess precision is no error by itself, but a comparison needs one value for both of
# its operands: :func:`widened` cannot be undone by a compiler.
#
# Operands that are rounded to 8 bits have the derivative of the identity (straight
# through). A result whose cotangent is rounded passes through a primitive that is the
# identity, which JAX transposes into a rounding: it is linear, so that forward mode,
# reverse mode and batching compose.

BITS = {"bfloat16": (8, 7)}
"""Exponent and mantissa bits of formats with the exponent range of float32.

``reduce_precision`` flushes subnormal numbers in other formats: in float16, 6e-5 became
0.
"""


def widened(value: Any, dtype: str) -> Any:
    """Return ``value`` in ``dtype``, with the rounding of its storage kept.

    The rounding is bound by ``reduce_precision``, which XLA may not drop and fuses with
    its users. For formats with fewer exponents, the value is put behind
    ``optimization_barrier``. Neither changes a value.

    Args:
        value: An array of floats, of any shape.
        dtype: Name of a float dtype with more bits.
    """
    stored = dtype_name(value)
    wide = jnp.dtype(dtype)
    if stored in BITS:
        exponent, mantissa = BITS[stored]
        found = lax.convert_element_type(value, wide)
        return lax.reduce_precision(found, exponent, mantissa)
    if itemsize(stored) <= 2:  # noqa: PLR2004  # bytes
        value = lax.optimization_barrier(value)
    return lax.convert_element_type(value, wide)


def widens(value: Any, dtype: str) -> bool:
    """Return whether ``dtype`` has more bytes than the float dtype of ``value``."""
    return itemsize(dtype_name(value)) < itemsize(dtype)


def abs_square(value: Any) -> Any:
    """Return ``|value|**2`` as complex numbers with an imaginary part of zero."""
    real, imag = lax.real(value), lax.imag(value)
    square = real * real + imag * imag
    return lax.complex(square, lax.full_like(square, 0))


def quantise_operand(value: Any, name: str, scaling: str) -> Any:
    """Return ``value`` rounded to the format ``name``, with derivative 1."""
    return _operand(value, name=name, scaling=scaling)


def quantise_cotangent(value: Any, name: str, scaling: str) -> Any:
    """Return ``value``; its cotangent is rounded to the format ``name``."""
    return _cotangent(value, name=name, scaling=scaling)


def _rounded(value: Any, *, name: str, scaling: Any) -> Any:
    return quantise_scaled(value, name, scaling)


def _unchanged(value: Any, **_: str) -> Any:
    """Return a tangent or cotangent: JAX transposes programs linear in the operand."""
    return value


_operand = new_unary("amprewrite_quantise", _unchanged, _unchanged, _rounded)
_cotangent = new_unary(
    "amprewrite_quantise_cotangent", quantise_cotangent, quantise_operand
)


@dataclass(frozen=True)
class Planned:
    """A program with a plan, and the facts that running it needs.

    Attributes:
        program: The program.
        graph: The program graph that the plan was made of.
        plan: The plan.
        planner: Plans the custom rules met when the program is run.
        training: Whether it will be differentiated.
        tangents: Inputs that are tangents of a rule; JAX transposes the program in
            them.
    """

    program: Program
    graph: ProgramGraph
    plan: Plan
    planner: Planner
    training: bool = True
    tangents: frozenset[str] = frozenset()

    @cached_property
    def stored(self) -> Mapping[str, str]:
        """The dtype in which each op result is stored."""
        by_op = self.plan.by_op
        return {
            name: dtype
            for op in self.graph.ops
            for name, dtype in zip(op.results, by_op[op.name].results, strict=True)
        }

    @cached_property
    def compared(self) -> frozenset[str]:
        """The ops that compare floats or move them to a comparison."""
        classes = {d.op: d.op_class for d in self.plan.decisions}
        return compared(self.graph, classes)

    @cached_property
    def linear(self) -> frozenset[str]:
        """The ops that depend on tangents; in a body, all ops if one does."""
        reached, regions = set(self.tangents), set[str]()
        linear: set[str] = set()
        for op in self.graph.ops:
            reads = not reached.isdisjoint(op.operands)
            if reads or (op.region and op.region in regions):
                linear.add(op.name)
                regions.add(op.region)
                reached.update(op.results)
        return frozenset(linear)

    @cached_property
    def exact(self) -> frozenset[str]:
        """The values that make exact arguments."""
        return self.planner.exact_values(self.graph)

    def converted(
        self,
        fun: Callable[..., Any],
        operands: Sequence[Any],
        tangents: Iterable[int],
        exact: Iterable[int],
    ) -> Sequence[Any]:
        """Return the outputs of a custom rule; see :meth:`ProgramExecutor.converted`.

        :class:`pipeline.Prepared` converts it by the same policy.
        """
        del tangents, exact
        return fun(*operands)


def cast(value: Any, dtype: str, *, saturate: bool = False) -> Any:
    """Return ``value`` in ``dtype``.

    Args:
        value: An array of floats.
        dtype: Name of a float dtype.
        saturate: Whether finite values beyond the range become the largest finite
            ones instead of infinities.
    """
    if saturate:
        largest = format_of(dtype).max
        inside = lax.clamp(
            jnp.asarray(-largest, value.dtype), value, jnp.asarray(largest, value.dtype)
        )
        value = lax.select(lax.is_finite(value), inside, value)
    if value.dtype.kind == "c" and is_float(dtype):
        value = lax.real(value)  # the policy allows it
    return convert(value, dtype)


def number(value: Any, dtype: str) -> Any:
    """Return the scalar ``value`` in ``dtype``, clamped to its finite range."""
    wide = float(value)
    if abs(wide) < np.inf:  # no infinity, and no NaN
        largest = format_of(dtype).max
        wide = min(max(wide, -largest), largest)
    return np.asarray(wide, jnp.dtype(dtype))


class Writer(ProgramExecutor):
    """Executor that runs the steps of a program by its plan.

    Attributes:
        context: The program and the plan.
        plan: The plan.
    """

    def __init__(self, context: Planned) -> None:
        super().__init__(context.program)
        self.context = context
        self.plan = plan = context.plan
        self.decisions: Mapping[str, Decision] = plan.by_op
        self.casts = {
            use: (c.to_dtype, c.saturate) for c in plan.casts for use in c.uses
        }
        self.uncast = frozenset(self._uncast())

    def dtype_of(self, name: str) -> str:
        """Return the dtype in which an op result is stored."""
        return self.context.stored[name]

    def outputs(self, env: Env) -> list[Any]:
        """Return the outputs, each in the dtype of the plan and as weak as traced."""
        results: list[Any] = []
        position = 0  # numbers are no outputs of the graph
        for atom in self.program.outputs:
            value = self.output(atom, env)
            if isinstance(atom, str):
                value = self.as_read(OUTPUT, position, value)
                value = _as_weak(value, self.program.avals[atom])
                position += 1
            results.append(value)
        return results

    def on_read(self, op: str, index: int, name: str, env: Env) -> Any:
        """Return a value as an op reads it; one in :attr:`uncast` as it is stored."""
        value = env[name]
        if (op, index) in self.uncast and dtype_name(value) == self.plan.full:
            return value
        return self.as_read(op, index, value)

    def as_read(self, op: str, index: int, value: Any) -> Any:
        """Return ``value`` in the dtype in which operand ``index`` of ``op`` reads."""
        wanted, saturate = self.casts.get((op, index), ("", False))
        if not wanted or dtype_name(value) == wanted:
            return value
        if saturate:
            return cast(value, wanted, saturate=True)
        return self.cast_for(op, value, wanted)

    def cast_for(self, op: str, value: Any, dtype: str) -> Any:
        """Return ``value`` in ``dtype``; in a comparison, rounded as stored."""
        if widens(value, dtype) and op in self.context.compared:
            return widened(value, dtype)
        return cast(value, dtype)

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        """Return a value that passes by ``boundary``, cast to its dtype there."""
        stored = self.decisions[boundary.op].results[0]
        if isinstance(value, Number):
            return number(value.value, stored) if is_float(stored) else value.value
        if is_float(stored) and dtype_name(value) != stored:
            return self.cast_for(boundary.op, value, stored)
        return value

    def number(self, step: Step, atom: Number) -> Any:
        """Return a number; if its dtype is full, in the computing dtype of its op."""
        decision = self.decisions[step.name]
        if atom.dtype != self.plan.full or decision.op_class == "keep":
            stored = decision.results[0] if decision.results else ""
            fills = not decision.operands and is_float(stored) and is_float(atom.dtype)
            return number(atom.value, stored) if fills else atom.value
        return number(atom.value, decision.precision)

    def evaluate(self, step: Step, operands: list[Any]) -> list[Any]:
        """Return the results of a step, in the dtypes of its decision."""
        decision = self.decisions[step.name]
        if step.chosen:
            return [self.cast_for(step.name, operands[0], decision.results[0])]
        if step.conjugates:
            return [abs_square(operands[0])]
        if decision.forward:
            operands = self.rounded_factors(decision, operands)
        results = self._bind(step, operands, decision)
        if decision.backward:
            results = [self.rounded_cotangent(decision, results[0])]
        return [
            self.cast_for(step.name, value, stored)
            if is_float(stored) and dtype_name(value) != stored
            else value
            for value, stored in zip(results, decision.results, strict=True)
        ]

    def rounded_factors(self, decision: Decision, operands: list[Any]) -> list[Any]:
        """Return the operands of a contraction, its factors rounded to 8 bits."""
        rounded, how = list(operands), (decision.forward, decision.scaling)
        for index in factor_indices(self.context.graph.op_by_name[decision.op]):
            rounded[index] = quantise_operand(rounded[index], *how)
        return rounded

    def rounded_cotangent(self, decision: Decision, result: Any) -> Any:
        """Return the result of a contraction, with its cotangent rounded to 8 bits."""
        return quantise_cotangent(result, decision.backward, decision.scaling)

    def converted(
        self,
        fun: Callable[..., list[Any]],
        operands: Sequence[Any],
        tangents: Iterable[int],
        exact: Iterable[int],
    ) -> Sequence[Any]:
        """Return the outputs of a custom rule, converted by the same policy."""
        return self.context.converted(fun, operands, tangents, exact)

    def makes_exact(self, name: str) -> bool:
        """Return whether a value makes exact arguments."""
        return name in self.context.exact

    def _bind(self, step: Step, operands: list[Any], decision: Decision) -> list[Any]:
        primitive, params = step.eqn.primitive, equations.bind_params(step.eqn)
        low, full = self.plan.low, self.plan.full
        untouched = decision.op_class == "keep" or decision.precision != low
        if primitive.name in CONTRACTIONS and low and decision.derivative == low:
            pair = operands[0], operands[1]
            return [self._contract(step, binder(primitive, params), pair)]
        if untouched and not _filled(step, decision, full):
            return bind(primitive, operands, params)
        sums = self.context.training and decision.operands and _sums_backwards(step)
        if decision.op_class == "accumulate" or sums:  # XLA chooses the accumulator
            operands = [cast(x, full) if dtype_name(x) == low else x for x in operands]
        elif primitive.name in TYPED_BODIES:
            return [_rebuilt(primitive.name, operands, params)]
        else:
            for key in DTYPE_PARAMETERS:
                if params.get(key) is not None and is_float(decision.results[0]):
                    params[key] = np.dtype(jnp.dtype(decision.results[0]))
        return bind(primitive, operands, params)

    def _contract(self, step: Step, bound: Binder, pair: tuple[Any, Any]) -> Any:
        """Contract two operands, low or full, with low derivatives."""
        decision = self.decisions[step.name]
        low, full = self.plan.low, self.plan.full
        made, reads = decision.accumulator, decision.precision
        of = Contraction(bound, low, full, made, reads, decision.derivative_accumulator)
        if step.name in self.context.linear:  # JAX may transpose it
            if reads == full:
                return bound(*pair, full)
            return contract_tangents(of, pair, decision.results[0])
        return contract(of, pair, decision.results[0])

    def _uncast(self) -> Iterator[tuple[str, int]]:
        """Yield the operands that a low contraction casts itself if they are full.

        An example is a weight. The gradient of that operand is then not rounded on the
        way. For computed operands it may be, because a processor contracts into the low
        dtype faster.
        """
        low = self.plan.low
        if not low:
            return
        computed = _computed(self.program.steps, self.decisions)
        for step in all_steps(self.program.steps):
            decision = self.decisions.get(step.name)
            if decision is None or step.primitive not in CONTRACTIONS:
                continue
            if decision.derivative != low or decision.quantises:
                continue
            if step.name in self.context.linear:
                continue
            for index, name in enumerate(names_of(step.operands)):
                cast_low = self.casts.get((step.name, index)) == (low, False)
                if cast_low and name not in computed:
                    yield step.name, index


def _as_weak(value: Any, aval: Any) -> Any:
    """Return an output weakly typed if it was traced so.

    Numbers of the program are bound in the dtype of their op, which is a strong one.
    """
    found = jax.typeof(value)
    weak = getattr(aval, "weak_type", False) and not getattr(found, "weak_type", False)
    if not weak or dtype_name(found) != dtype_name(aval):
        return value
    return as_weak(value)


def _computed(steps: tuple[Step, ...], decisions: Mapping[str, Decision]) -> set[str]:
    """Return the computed values of ``steps`` at every depth, not moved inputs."""
    computed = set[str]()
    for step in all_steps(steps):
        decision = decisions.get(step.name)
        moves = decision is not None and decision.op_class == "follow"
        if not moves or not computed.isdisjoint(names_of(step.operands)):
            computed.update(step.results)
    return computed


def _filled(step: Step, decision: Decision, full: str) -> bool:
    """Return whether an op fills an array with a number, in another dtype."""
    return not decision.operands and decision.results != (full,) and bool(step.operands)


def _sums_backwards(step: Step) -> bool:
    """Return whether the derivative is a sum: then the step is bound in full.

    Numbers have none. Its casts change no value, and XLA fuses them.
    """
    if step.primitive not in SUMMED_BACKWARDS:
        return False
    read, made = step.eqn.invars[0].aval, step.eqn.outvars[0].aval
    return step.primitive != "broadcast_in_dim" or read.size != made.size


def _rebuilt(primitive: str, operands: list[Any], params: dict[str, Any]) -> Any:
    """Bind a scatter by its public function, which builds the body for the dtype."""
    function = getattr(lax, TYPED_BODIES[primitive])
    return function(
        *operands,
        params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )
