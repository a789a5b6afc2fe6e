"""Arrays of one run of a JAX function, forward and backward.

Every float array of an equation is one, in functions under ``jit`` and under
``jax.checkpoint`` too; those of JAX itself, such as ``jax.nn.gelu``, are one equation,
and so are branches, ``while`` loops and functions with derivatives of their own. The
arrays of a ``scan`` are stacked, one for all iterations.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.equations import (
    bind_params,
    body_of,
    file_of,
    is_literal,
    scan_counts,
)
from amprewrite.frameworks.jaxpr.compat.tracebacks import source_line
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.pure_function import subject_of
from amprewrite.measure.observed import Look, Observed, numbered
from amprewrite.measure.output_gradients import output_gradients as drawn_gradients
from amprewrite.measure.runs import Call
from amprewrite.user_code import is_in

Array = Any
Eqn = Any


class Seen(NamedTuple):
    """A float array of a run, with its gradient.

    Attributes:
        name: Name of the function or primitive, numbered.
        where: Source line of the user; empty if unknown.
        eqn: The equation.
        first: Name of the array that is its first operand; empty for an array of no
            equation, or a number.
        value: The array.
        gradient: Its gradient; None without.
    """

    name: str
    where: str
    eqn: Eqn
    first: str
    value: Array
    gradient: Array


class Run(NamedTuple):
    """A run of a function: its parameters with their gradients, and its arrays.

    Attributes:
        names: Names of the parameters.
        parameters: The parameters.
        gradients: Their gradients; empty without.
        made: The arrays of equations.
    """

    names: Sequence[str]
    parameters: Sequence[Array]
    gradients: Sequence[Array]
    made: Sequence[Seen]


def observe(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    look: Look,
    *,
    gradients: bool = True,
) -> None:
    """Show the parameters of a model, and every float array of an equation.

    Args:
        model: The model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        look: Consumer of the arrays.
        gradients: Whether to run backward; see :mod:`amprewrite.measure
            .output_gradients` for the gradients of the outputs.

    Raises:
        ArgumentError: There is no float output, or no argument.
    """
    found = run(model, args, kwargs, gradients=gradients)
    for name, x in zip(found.names, found.parameters, strict=True):
        look(Observed(name, "", True, False, partial(values_of, x)))
    for seen in found.made:
        values = partial(values_of, seen.value)
        look(Observed(seen.name, seen.where, False, False, values))
    if gradients:
        for name, g in zip(found.names, found.gradients, strict=True):
            look(Observed(name, "", True, True, partial(values_of, g)))
        for seen in found.made:
            values = partial(values_of, seen.gradient)
            look(Observed(seen.name, seen.where, False, True, values))


def values_of(x: Array) -> Any:
    """Return the values of an array, in float64, on the host."""
    return np.asarray(x, dtype=np.float64)


def run(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    gradients: bool = True,
) -> Run:
    """Run a function, and return its arrays with their gradients.

    Raises:
        ArgumentError: There is no float output, or no argument.
    """
    outputs, given, names = split_parameters(model, args, kwargs)
    program: Any = jax.make_jaxpr(outputs)(*given)
    sites = list(_sites(program.jaxpr, {}, {}))

    def again(floats: list[Array], added: list[Array]) -> Any:
        return _run(program.jaxpr, program.consts, floats, iter(added))

    nothing = [jnp.zeros(site.shape, site.dtype) for site in sites]
    if gradients:
        values, back, seen = jax.vjp(jax.jit(again), given, nothing, has_aux=True)
        of_parameters, of_arrays = back(output_gradients(values))
    else:
        _, seen = jax.jit(again)(given, nothing)
        of_parameters, of_arrays = [], [None] * len(sites)
    made = [
        Seen(site.name, site.where, site.eqn, site.first, value, gradient)
        for site, value, gradient in zip(sites, seen, of_arrays, strict=True)
    ]
    return Run(names, given, of_parameters, made)


def split_parameters(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., list[Any]], list[Any], list[str]]:
    """Return a function from float parameters to float outputs, and the parameters.

    Parameters are those of a module, or the floats of a function's first argument.

    Returns:
        The function, the parameters, and their names.

    Raises:
        ArgumentError: There is no argument that could hold parameters.
    """
    if adapter_of(model) is not None:
        return _split_module(model, args, kwargs)
    if any(map(_is_float, tree_util.tree_leaves(model))):
        held = model

        def function(module: Any, *given: Any, **named: Any) -> Any:
            return module(*given, **named)

    else:
        if not args:
            msg = "args is empty; want the parameters as the first argument"
            raise ArgumentError(msg)
        function, held, args = model, args[0], args[1:]
    paths, structure = tree_util.tree_flatten_with_path(held)
    where = [i for i, (_, leaf) in enumerate(paths) if _is_float(leaf)]
    names = [tree_util.keystr(paths[i][0], simple=True, separator=".") for i in where]

    def outputs(*floats: Any) -> list[Any]:
        leaves = _replaced([leaf for _, leaf in paths], where, floats)
        made = function(tree_util.tree_unflatten(structure, leaves), *args, **kwargs)
        return [y for y in tree_util.tree_leaves(made) if _is_float(y)]

    return outputs, [paths[i][1] for i in where], names


def _split_module(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., list[Any]], list[Any], list[str]]:
    """Return the same for a module of a library, by its adapter."""
    subject = subject_of(model, Call(args, kwargs))

    def outputs(*floats: Any) -> list[Any]:
        made = subject.flat(*_replaced(subject.arrays, subject.trained, floats))
        return [y for y in tree_util.tree_leaves(made) if _is_float(y)]

    names = [subject.names[i] for i in subject.trained]
    return outputs, [subject.arrays[i] for i in subject.trained], names


def _replaced(
    leaves: Sequence[Any], where: Sequence[int], floats: Sequence[Any]
) -> list[Any]:
    found = list(leaves)
    for i, leaf in zip(where, floats, strict=True):
        found[i] = leaf
    return found


def _is_float(leaf: Any) -> bool:
    """Return whether a leaf is an array of floats."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def output_gradients(values: list[Any]) -> list[Any]:
    """Return a gradient for each output.

    See :func:`amprewrite.measure.output_gradients.output_gradients`.

    Raises:
        ArgumentError: There is no float output.
    """
    if not values:
        msg = "the function gives no float array; want an output, or a loss"
        raise ArgumentError(msg)
    drawn = drawn_gradients([tuple(y.shape) for y in values])
    return [jnp.asarray(g, y.dtype) for y, g in zip(values, drawn, strict=True)]


# --- the equations -----------------------------------------------------------------


class _Site(NamedTuple):
    """A float result of an equation; see :class:`Seen`."""

    name: str
    where: str
    eqn: Eqn
    first: str
    shape: tuple[int, ...]
    dtype: Any


def _sites(
    jaxpr: Any,
    known: dict[Any, str],
    counts: dict[str, int],
    lengths: tuple[int, ...] = (),
) -> Iterator[_Site]:
    """Yield the float results of equations, in the order of :func:`_run`.

    Args:
        jaxpr: The program.
        known: Names of arrays by variable; new ones are added.
        counts: Uses of each name.
        lengths: Lengths of the loops around.
    """
    for eqn in jaxpr.eqns:
        body = _entered(eqn)
        if body is not None:
            inner, extra = _body(body), _loop(eqn)
            _alias(inner.invars, eqn.invars, known)
            yield from _sites(inner, known, counts, (*lengths, *extra))
            _alias(eqn.outvars, inner.outvars, known)
            continue
        for var in _floats(eqn):
            first = _known(eqn.invars[0], known) if eqn.invars else ""
            known[var] = numbered(name_of(eqn), counts)
            where = source_line(eqn.source_info.traceback)
            shape = (*lengths, *var.aval.shape)
            yield _Site(known[var], where, eqn, first, shape, var.aval.dtype)


def _alias(variables: Any, atoms: Any, known: dict[Any, str]) -> None:
    """Give variables the names of the arrays that they stand for."""
    for var, atom in zip(variables, atoms, strict=True):
        known[var] = _known(atom, known)


def _known(atom: Any, known: Mapping[Any, str]) -> str:
    return "" if is_literal(atom) else known.get(atom, "")


def _floats(eqn: Eqn) -> list[Any]:
    """Return the results that are float arrays."""
    return [v for v in eqn.outvars if jnp.issubdtype(v.aval.dtype, jnp.floating)]


def _entered(eqn: Eqn) -> Any:
    """Return the body of an equation that is entered; None of other equations."""
    match eqn.primitive.name:
        case "jit" | "pjit":
            return None if is_in(file_of(eqn), "jax") else body_of(eqn)
        case "checkpoint" | "remat" | "remat2" | "scan":
            return body_of(eqn)
        case _:
            return None


def _body(body: Any) -> Any:
    """Return the program of a body, which may be bound to constants."""
    return getattr(body, "jaxpr", body)


def _loop(eqn: Eqn) -> tuple[int, ...]:
    """Return the length of a loop; nothing for other bodies."""
    return (eqn.params["length"],) if eqn.primitive.name == "scan" else ()


def name_of(eqn: Eqn) -> str:
    """Return the name of the function that an equation calls, else of its primitive."""
    body = eqn.params.get("call_jaxpr")
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    if body is None or body.jaxpr.debug_info is None:
        return str(eqn.primitive.name)
    return str(body.jaxpr.debug_info.func_name)


def _run(
    jaxpr: Any, consts: Sequence[Array], inputs: Sequence[Array], added: Iterator[Array]
) -> tuple[list[Array], list[Array]]:
    """Run a program, with something added to each float array that it makes.

    Returns:
        The outputs, and the arrays.
    """
    values: dict[Any, Array] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))
    seen = list[Array]()

    def read(atom: Any) -> Array:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in jaxpr.eqns:
        given = [read(atom) for atom in eqn.invars]
        body = _entered(eqn)
        if body is not None:
            run_body = _scan if eqn.primitive.name == "scan" else _call
            results, inner = run_body(eqn, body, given, added)
            seen += inner
            values |= dict(zip(eqn.outvars, results, strict=True))
            continue
        found = eqn.primitive.bind(*given, **bind_params(eqn))
        results = found if eqn.primitive.multiple_results else [found]
        values |= dict(zip(eqn.outvars, results, strict=True))
        for var in _floats(eqn):
            values[var] = values[var] + next(added)
            seen.append(values[var])
    return [read(atom) for atom in jaxpr.outvars], seen


def _call(
    _eqn: Eqn, body: Any, given: list[Array], added: Iterator[Array]
) -> tuple[list[Array], list[Array]]:
    return _run(_body(body), getattr(body, "consts", ()), given, added)


def _scan(
    eqn: Eqn, body: Any, given: list[Array], added: Iterator[Array]
) -> tuple[list[Array], list[Array]]:
    """Run a loop; arrays, and those added to them, have an extent of iterations."""
    params, (fixed, carries) = eqn.params, scan_counts(eqn)
    start = fixed + carries
    count = sum(1 for _ in _sites(_body(body), {}, {}))

    def step(carry: list[Array], slices: Any) -> Any:
        xs, more = slices
        inputs = [*given[:fixed], *carry, *xs]
        made, seen = _call(eqn, body, inputs, iter(more))
        return made[:carries], (made[carries:], seen)

    carry, (ys, seen) = jax.lax.scan(
        step,
        given[fixed:start],
        (given[start:], list(islice(added, count))),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *ys], seen
