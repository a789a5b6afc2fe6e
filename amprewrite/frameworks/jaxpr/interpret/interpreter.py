"""Run a program by its plan: bind every equation again, with its casts.

Run under a trace, this emits the rewritten program, so that every transformation of JAX
applies to it. A value has the dtype that it was produced in; each use casts it if the
plan reads it in another. Casts are bound separately for each use, so that the gradients
of several uses add up in full precision; XLA merges equal casts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from amprewrite.dtypes import format_of, is_float
from amprewrite.frameworks.jaxpr.compat import equations, name_stacks
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.interpret import quantised
from amprewrite.frameworks.jaxpr.interpret.binders import Dot, Other, abs_square, binder
from amprewrite.frameworks.jaxpr.interpret.contractions import (
    Contraction,
    contract,
    contract_tangents,
)
from amprewrite.frameworks.jaxpr.interpret.rounded import converted, widened, widens
from amprewrite.frameworks.jaxpr.program.ops import (
    CONTRACTIONS,
    DTYPE_PARAMETERS,
    SUMMED_BACKWARDS,
    TYPED_BODIES,
    dtype_name,
)
from amprewrite.frameworks.jaxpr.program.program import (
    Atom,
    Number,
    Program,
    RegionBoundary,
    Step,
)
from amprewrite.ir import ProgramGraph
from amprewrite.plan import OUTPUT, Decision, Plan

Env = dict[str, Any]
"""Values, by name."""

Handler = Callable[["Writer", Step, Env], Sequence[Any]]
"""Function that returns the results of a step with bodies."""


class Context(Protocol):
    """Program, plan and settings of a run; see :class:`pipeline.Prepared`."""

    @property
    def program(self) -> Program:
        """The program."""
        ...

    @property
    def graph(self) -> ProgramGraph:
        """The program graph."""
        ...

    @property
    def plan(self) -> Plan:
        """Plan of the program."""
        ...

    @property
    def training(self) -> bool:
        """Whether it will be differentiated."""
        ...

    @cached_property
    def stored(self) -> Mapping[str, str]:
        """The dtype in which each op result is stored."""
        ...

    @cached_property
    def compared(self) -> frozenset[str]:
        """The ops that compare floats or move them to a comparison."""
        ...

    @cached_property
    def linear(self) -> frozenset[str]:
        """The ops that depend on tangents."""
        ...

    @cached_property
    def exact(self) -> frozenset[str]:
        """The values that make exact arguments."""
        ...

    def converted(
        self,
        fun: Callable[..., Any],
        operands: Sequence[Any],
        tangents: Iterable[int] = (),
        exact: Iterable[int] = (),
    ) -> list[Any]:
        """Return the outputs of ``fun`` on arrays, converted by the same policy."""
        ...


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
    return converted(value, dtype)


def number(value: Any, dtype: str) -> Any:
    """Return the scalar ``value`` in ``dtype``, clamped to its finite range."""
    wide = float(value)
    if abs(wide) < np.inf:  # no infinity, and no NaN
        largest = format_of(dtype).max
        wide = min(max(wide, -largest), largest)
    return np.asarray(wide, jnp.dtype(dtype))


class Writer:
    """Interpreter that runs the steps of a program by its plan.

    Attributes:
        context: The program and the plan.
        handlers: Functions that run steps with bodies, by primitive.
        plan: The plan.
    """

    def __init__(self, context: Context, handlers: Mapping[str, Handler]) -> None:
        self.context, self.handlers = context, handlers
        self.plan = plan = context.plan
        self.decisions: Mapping[str, Decision] = plan.by_op
        self.casts = {
            use: (c.to_dtype, c.saturate) for c in plan.casts for use in c.uses
        }
        self.computed = _computed(context.program.steps, self.decisions, set())

    def program(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs of the program on ``inputs``."""
        program = self.context.program
        env: Env = dict(program.constants)
        env.update(zip(program.inputs, inputs, strict=True))
        self.run(program.steps, env)
        results: list[Any] = []
        position = 0  # numbers are no outputs of the graph
        for atom in program.outputs:
            value = self.get(atom, env)
            if isinstance(atom, str):
                value = self.as_read(OUTPUT, position, value)
                value = _as_weak(value, program.avals[atom])
                position += 1
            elif atom.dtype != "float0":  # depends on no input
                value = jnp.asarray(value, None if atom.weak else atom.dtype)
            results.append(value)
        return results

    def run(self, steps: Iterable[Step], env: Env) -> None:
        """Run ``steps`` and store their results in ``env``."""
        around = name_stacks.current()
        for step in steps:
            place = name_stacks.place_in(around, step.eqn, step.stack)
            with place, step.eqn.ctx.manager:
                handler = self.handlers[step.primitive] if step.bodies else None
                made = handler(self, step, env) if handler else self._plain(step, env)
            env.update(zip(step.results, made, strict=True))

    def constants(self, env: Env) -> Env:
        """Return the closed-over values, which bodies read without a boundary."""
        names = self.context.program.constants
        return {name: env[name] for name in names if name in env}

    def stored(self, name: str) -> str:
        """Return the dtype in which an op result is stored."""
        return self.context.stored[name]

    def rule_dtype(self, aval: Any) -> str:
        """Return the dtype in which a user's rule receives a value of type ``aval``."""
        return dtype_name(aval)

    def get(self, atom: Atom, env: Env) -> Any:
        """Return the stored value of ``atom``."""
        return atom.value if isinstance(atom, Number) else env[atom]

    def read(self, op: str, index: int, atom: str, env: Env) -> Any:
        """Return the value of ``atom`` as operand ``index`` of ``op`` reads it."""
        return self.as_read(op, index, env[atom])

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

    def pass_boundary(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Any:
        """Return the value that passes by ``boundary``, cast to its dtype there.

        Args:
            boundary: The boundary.
            env: Values on the side of its source.
            which: Index of the source body, where there are several.
        """
        atom = boundary.reads[which]
        made = self.decisions[boundary.op].results[0]
        if isinstance(atom, Number):
            return number(atom.value, made) if is_float(made) else atom.value
        index = sum(isinstance(a, str) for a in boundary.reads[:which])
        value = self.read(boundary.op, index, atom, env)
        if is_float(made) and dtype_name(value) != made:
            return self.cast_for(boundary.op, value, made)
        return value

    def shared_outputs(self, step: Step, env: Env) -> list[Any]:
        """Run a body that reads outer values, given in ``env``; return its outputs."""
        (body,) = step.bodies
        self.run(body.steps, env)
        return [
            self.get(atom, env) if leave is None else self.pass_boundary(leave, env)
            for atom, leave in zip(body.outputs, step.leaves, strict=True)
        ]

    def _operands(self, step: Step, env: Env) -> list[Any]:
        values: list[Any] = []
        name, index, contracts = step.name, 0, step.primitive in CONTRACTIONS
        for atom in step.operands:
            if isinstance(atom, Number):
                values.append(self._number(atom, self.decisions[name]))
                continue
            value = env[atom]
            if not (contracts and self._casts_itself(step, index, atom, value)):
                value = self.as_read(name, index, value)
            values.append(value)
            index += 1
        return values

    def _number(self, atom: Number, decision: Decision) -> Any:
        """Return a number; if its dtype is full, in the computing dtype of its op."""
        if atom.dtype != self.plan.full or decision.op_class == "keep":
            made = decision.results[0] if decision.results else ""
            fills = not decision.operands and is_float(made) and is_float(atom.dtype)
            return number(atom.value, made) if fills else atom.value
        return number(atom.value, decision.precision)

    def _plain(self, step: Step, env: Env) -> list[Any]:
        decision = self.decisions[step.name]
        operands = self._operands(step, env)
        if step.chosen:
            return [self.cast_for(step.name, operands[0], decision.results[0])]
        if step.conjugates:
            return [abs_square(operands[0])]
        if decision.forward:
            operands = self.rounded_factors(decision, operands)
        made = self._bind(step, operands, decision)
        if decision.backward:
            made = self.rounded_cotangent(decision, made)
        results = list(made) if step.eqn.primitive.multiple_results else [made]
        return [
            self.cast_for(step.name, value, wanted)
            if is_float(wanted) and dtype_name(value) != wanted
            else value
            for value, wanted in zip(results, decision.results, strict=True)
        ]

    def rounded_factors(self, decision: Decision, operands: list[Any]) -> list[Any]:
        """Return the operands of a contraction, its factors rounded to 8 bits."""
        op = self.context.graph.op_by_name[decision.op]
        return quantised.quantise_factors(op, decision, operands)

    def rounded_cotangent(self, decision: Decision, made: Any) -> Any:
        """Return the result of a contraction, with its cotangent rounded to 8 bits."""
        how = decision.backward, decision.scaling
        return quantised.quantise_cotangent(made, *how)

    def _bind(self, step: Step, operands: list[Any], decision: Decision) -> Any:
        primitive, params = step.eqn.primitive, equations.bind_params(step.eqn)
        low, full = self.plan.low, self.plan.full
        untouched = decision.op_class == "keep" or decision.precision != low
        if primitive.name in CONTRACTIONS and low and decision.derivative == low:
            bind = binder(primitive, params)
            return self._contract(step, bind, (operands[0], operands[1]))
        if untouched and not _filled(step, decision, full):
            return primitive.bind(*operands, **params)
        if decision.op_class == "accumulate":  # XLA chooses the accumulator
            wide = [cast(x, full) if dtype_name(x) == low else x for x in operands]
            return primitive.bind(*wide, **params)
        if primitive.name in TYPED_BODIES:
            return _rebuilt(primitive.name, operands, params)
        if self.context.training and decision.operands and _sums_backwards(step):
            wide = [cast(x, full) if dtype_name(x) == low else x for x in operands]
            return primitive.bind(*wide, **params)
        for key in DTYPE_PARAMETERS:
            if params.get(key) is not None and is_float(decision.results[0]):
                params[key] = np.dtype(jnp.dtype(decision.results[0]))
        return primitive.bind(*operands, **params)

    def _contract(self, step: Step, bind: Dot | Other, pair: tuple[Any, Any]) -> Any:
        """Contract two operands, low or full, with low derivatives."""
        decision = self.decisions[step.name]
        low, full = self.plan.low, self.plan.full
        made, reads = decision.accumulator, decision.precision
        of = Contraction(bind, low, full, made, reads, decision.derivative_accumulator)
        if step.name in self.context.linear:  # JAX may transpose it
            if reads == full:
                return bind(*pair, full)
            return contract_tangents(of, pair, decision.results[0])
        return contract(of, pair, decision.results[0])

    def _casts_itself(self, step: Step, index: int, name: str, value: Any) -> bool:
        """Return whether a low contraction casts a full operand, such as a weight.

        The gradient of that operand is then not rounded on the way. For computed
        operands it may be, because a processor contracts into the low dtype faster.
        """
        low, full = self.plan.low, self.plan.full
        return (
            not self.decisions[step.name].quantises
            and self.decisions[step.name].derivative == low
            and step.name not in self.context.linear
            and self.casts.get((step.name, index)) == (low, False)
            and name not in self.computed
            and dtype_name(value) == full
        )


def _as_weak(value: Any, aval: Any) -> Any:
    """Return an output weakly typed if it was traced so.

    Numbers of the program are bound in the dtype of their op, which is a strong one.
    """
    found = jax.typeof(value)
    weak = getattr(aval, "weak_type", False) and not getattr(found, "weak_type", False)
    if not weak or dtype_name(found) != dtype_name(aval):
        return value
    return lax.convert_element_type_p.bind(
        value, new_dtype=found.dtype, weak_type=True, sharding=None
    )


def _computed(
    steps: Iterable[Step], decisions: Mapping[str, Decision], found: set[str]
) -> set[str]:
    """Return ``found`` with the computed values of ``steps``, not moved inputs."""
    for step in steps:
        decision = decisions.get(step.name)
        moves = decision is not None and decision.op_class == "follow"
        if not moves or any(a in found for a in step.operands if isinstance(a, str)):
            found.update(step.results)
        for body in step.bodies:
            _computed(body.steps, decisions, found)
    return found


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
