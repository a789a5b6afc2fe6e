"""Run functions with custom derivative rules, and convert their rules.

A rule of the user was written for, and is checked by JAX at, the traced dtypes. The
value of a custom JVP function may be low, because its rule is called with primals and
tangents cast up, and its results are cast down again; a custom VJP function passes all
values in their traced dtypes. The rules themselves are converted when JAX traces them,
by the same policy.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from jax.custom_derivatives import SymbolicZero

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, tree_util
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Writer, cast
from amprewrite.frameworks.jaxpr.interpret.region_boundary import (
    entering,
    inside,
    leaving,
)
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Step

ARRAY = object()
"""Placeholder for an array in the result of a rule, where None is a valid part."""

Rule = Callable[..., Sequence[Any]]
"""A rule as JAX calls it: flat arguments, not all of them arrays."""


def is_array(value: object) -> bool:
    """Return whether ``value`` can be traced; tangents of integers cannot."""
    arrays = (jax.Array, np.ndarray, np.generic)
    return isinstance(value, arrays) and dtype_name(value) != "float0"


def custom_jvp(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    """Run a custom JVP function; values pass in the dtypes they are stored in."""
    params = equations.bind_params(step.eqn)
    fun, rule = params.pop("subfuns")
    traced = [writer.rule_dtype(var.aval) for var in step.eqn.invars]
    made = [writer.stored(name) for name in step.results]
    exact = _exact(writer, step)
    outer = writer.constants(env)

    def value(*operands: Any) -> list[Any]:
        pairs = zip(step.operands, operands, strict=True)
        named = {atom: x for atom, x in pairs if isinstance(atom, str)}
        return writer.shared_outputs(step, {**outer, **named})

    def jvp(*primals_and_tangents: Any) -> list[Any]:
        widened = [
            _as(x, dtype)
            for x, dtype in zip(primals_and_tangents, traced * 2, strict=True)
        ]
        run = _partially(writer, rule.call_wrapped, exact, len(traced))
        out = run(*widened)
        return [_as(x, dtype) for x, dtype in zip(out, made * 2, strict=True)]

    params["subfuns"] = (tracers.wrapped(value, fun), tracers.wrapped(jvp, rule))
    operands = [writer.get(atom, env) for atom in step.operands]
    return step.eqn.primitive.bind(*operands, **params)


def custom_vjp(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    """Run a custom VJP function; values pass in the dtypes that were traced."""
    (body,) = step.bodies
    params = equations.bind_params(step.eqn)
    fun, forward, backward = params.pop("subfuns")
    outer = writer.constants(env)
    count = len(step.results)  # the last outputs of the forward rule
    exact = [index - count for index in _exact(writer, step)]

    def value(*entered: Any) -> list[Any]:
        return leaving(writer, step, inside(writer, body, outer, entered))

    params["subfuns"] = (
        tracers.wrapped(value, fun),
        tracers.wrapped(_partially(writer, forward.call_wrapped, exact), forward),
        tracers.wrapped(_partially(writer, backward.call_wrapped), backward),
    )
    return step.eqn.primitive.bind(*entering(writer, body, env), **params)


def _as(value: Any, dtype: str) -> Any:
    """Return a primal or tangent in ``dtype``, also a symbolic zero."""
    if isinstance(value, SymbolicZero):
        aval: Any = value.aval
        if is_float(dtype) and dtype_name(aval) != dtype:
            return SymbolicZero(aval.update(dtype=np.dtype(jax.numpy.dtype(dtype))))
        return value
    if not is_float(dtype) or not is_array(value) or dtype_name(value) == dtype:
        return value
    return cast(value, dtype)


def _exact(writer: Writer, step: Step) -> list[int]:
    """Return the positions of the results that make exact arguments."""
    return [i for i, n in enumerate(step.results) if n in writer.context.exact]


def _partially(
    writer: Writer,
    rule: Rule,
    exact: Sequence[int] = (),
    primals: int | None = None,
) -> Rule:
    """Return ``rule`` converted; arguments other than arrays are passed unchanged.

    Args:
        writer: Runs the program that the rule belongs to.
        rule: The rule.
        exact: Positions of its outputs that make exact arguments, perhaps from the end.
        primals: Number of operands that are primals, if those after them are tangents.
    """

    def run(*operands: Any) -> list[Any]:
        flags = [is_array(x) for x in operands]
        others: list[Any] = []
        structure: list[Any] = []
        places: list[int] = []  # of arrays that make exact arguments

        def of_arrays(*arrays: Any) -> list[Any]:
            supply = iter(arrays)
            pairs = zip(operands, flags, strict=True)
            given = rule(*(next(supply) if flag else x for x, flag in pairs))
            out, structure[:] = _flat(given)
            others[:] = [ARRAY if is_array(x) else x for x in out]
            arrays_before = list(accumulate(map(is_array, out), initial=0))
            named = (range(len(out))[index] for index in exact)
            places[:] = [arrays_before[i] for i in named if is_array(out[i])]
            return [x for x in out if is_array(x)]

        arrays = [x for x, flag in zip(operands, flags, strict=True) if flag]
        before = len(arrays) if primals is None else sum(flags[:primals])
        tangents = range(before, len(arrays))
        found = iter(writer.context.converted(of_arrays, arrays, tangents, places))
        filled = [next(found) if x is ARRAY else x for x in others]
        return tree_util.tree_unflatten(structure[0], filled)

    return run


def _flat(given: Any) -> tuple[list[Any], list[Any]]:
    """Return the result of a rule as one list, and its structure.

    It is a sequence, and since jax 0.11 a pair of one and a log for backward rules.
    Anything else, None also, is a part.
    """

    def is_part(value: object) -> bool:
        return not isinstance(value, (list, tuple, dict))

    parts, structure = tree_util.tree_flatten(given, is_leaf=is_part)
    return parts, [structure]
