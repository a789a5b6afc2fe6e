"""Scales of the arrays of a JAX function: every equation of its program is seen."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat.equations import bind_params, is_literal
from amprewrite.frameworks.jaxpr.compat.tracebacks import source_line
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.unit_scaling.jax.gradients import output_gradients, split_parameters
from amprewrite.unit_scaling.jax.scale import amprewrite_scale
from amprewrite.unit_scaling.tracking import Scale, Tracked, numbered

Array = Any


def track(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tracked]:
    """Return the scales of parameters, and of every float array of an equation.

    Raises:
        ArgumentError: No output is a float array, or there is no argument.
    """
    outputs, given, names = split_parameters(model, args, kwargs)
    program: Any = jax.make_jaxpr(outputs)(*given)
    made = [
        (eqn, var)
        for eqn in program.jaxpr.eqns
        for var in eqn.outvars
        if jnp.issubdtype(var.aval.dtype, jnp.floating)
    ]
    nothing = [jnp.zeros(var.aval.shape, var.aval.dtype) for _, var in made]

    def again(floats: list[Array], added: list[Array]) -> Any:
        return _run(program, floats, added)

    values, back, seen = jax.vjp(jax.jit(again), given, nothing, has_aux=True)
    of_parameters, of_arrays = back(output_gradients(values))
    counts: dict[str, int] = {}
    known: dict[Any, str] = {}
    rows = [
        Tracked(name, "", tuple(np.shape(x)), _scale(x), _scale(g), parameter=True)
        for name, x, g in zip(names, given, of_parameters, strict=True)
    ]
    for (eqn, var), value, gradient in zip(made, seen, of_arrays, strict=True):
        known[var] = numbered(_name(eqn), counts)
        rows.append(
            Tracked(
                known[var],
                source_line(eqn.source_info.traceback),
                tuple(var.aval.shape),
                _scale(value),
                _scale(gradient),
                scaled=_scaled(eqn, known),
            )
        )
    return rows


def _scaled(eqn: Any, known: Mapping[Any, str]) -> str | None:
    """Return the name of the array that a result is but for a factor of unit scaling.

    Empty where it is none of an equation, None where there is no such factor.
    """
    if _name(eqn) != amprewrite_scale.__name__:
        return None
    source = eqn.invars[0]
    return "" if is_literal(source) else known.get(source, "")


def _name(eqn: Any) -> str:
    """Return the name of the function that an equation calls, else of its primitive."""
    body = eqn.params.get("call_jaxpr")
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    if body is None or body.jaxpr.debug_info is None:
        return str(eqn.primitive.name)
    return str(body.jaxpr.debug_info.func_name)


def _scale(x: Array) -> Scale:
    return Scale.of(np.asarray(x, dtype=np.float64))


def _run(
    program: Any, floats: list[Array], added: list[Array]
) -> tuple[list[Array], list[Array]]:
    """Run a program, with something added to each float array that it makes.

    Returns:
        The outputs, and the arrays.
    """
    values: dict[Any, Array] = dict(
        zip(program.jaxpr.constvars, program.consts, strict=True)
    )
    values |= dict(zip(program.jaxpr.invars, floats, strict=True))
    rest, seen = iter(added), list[Array]()

    def read(atom: Any) -> Array:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in program.jaxpr.eqns:
        found = eqn.primitive.bind(*map(read, eqn.invars), **bind_params(eqn))
        results = found if eqn.primitive.multiple_results else [found]
        for var, value in zip(eqn.outvars, results, strict=True):
            if jnp.issubdtype(var.aval.dtype, jnp.floating):
                values[var] = value + next(rest)
                seen.append(values[var])
            else:
                values[var] = value
    return [read(atom) for atom in program.jaxpr.outvars], seen
