"""Arrays of one run of a JAX function, forward and backward, and calls that are seen.

Every float array of an equation is one, in functions under ``jit`` and under
``jax.checkpoint`` too; those of JAX itself, such as ``jax.nn.gelu``, are one equation,
and so are branches, ``while`` loops and functions with derivatives of their own. The
arrays of a ``scan`` are stacked, one for all iterations.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from threading import local
from typing import Any, NamedTuple

import numpy as np

from amprewrite.errors import ArgumentError
from amprewrite.frameworks.base import Attached, Watcher
from amprewrite.frameworks.jaxpr.compat.equations import file_of, source_line
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor, Turn
from amprewrite.frameworks.jaxpr.function.adapters import adapter_of
from amprewrite.frameworks.jaxpr.function.pure_function import subject_of
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import (
    Program,
    RegionBoundary,
    Step,
    all_steps,
)
from amprewrite.measure.runs import Call, Look, Observed, numbered
from amprewrite.measure.runs import output_gradients as drawn_gradients
from amprewrite.user_code import is_in

Array = Any
Eqn = Any

ENTERED = frozenset(("checkpoint", "remat", "remat2", "scan"))
"""Primitives with bodies whose arrays are shown, beside jits of the user."""


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
    gradient: Array = None


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
    program = inline(jax.make_jaxpr(outputs)(*given), whole=_is_whole)
    sites = list(_sites(program.steps, program.avals, {}, {}))

    def again(floats: list[Array], added: list[Array]) -> Any:
        adding = _Adding(program, added)
        return adding(floats), adding.seen

    nothing = [jnp.zeros(site.value.shape, site.value.dtype) for site in sites]
    if gradients:
        values, back, seen = jax.vjp(jax.jit(again), given, nothing, has_aux=True)
        of_parameters, of_arrays = back(output_gradients(values))
    else:
        _, seen = jax.jit(again)(given, nothing)
        of_parameters, of_arrays = [], [None] * len(sites)
    made = [
        site._replace(value=value, gradient=gradient)
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

    See :func:`amprewrite.measure.runs.output_gradients`.

    Raises:
        ArgumentError: There is no float output.
    """
    if not values:
        msg = "the function gives no float array; want an output, or a loss"
        raise ArgumentError(msg)
    drawn = drawn_gradients([tuple(y.shape) for y in values])
    return [jnp.asarray(g, y.dtype) for y, g in zip(values, drawn, strict=True)]


# --- the equations -----------------------------------------------------------------


def _sites(
    steps: Iterable[Step],
    avals: Mapping[str, Any],
    known: dict[str, str],
    counts: dict[str, int],
    lengths: tuple[int, ...] = (),
) -> Iterator[Seen]:
    """Yield the float results of equations, as types, in the order of a run.

    Args:
        steps: The program.
        avals: Types of its values.
        known: Names of arrays by value; new ones are added.
        counts: Uses of each name.
        lengths: Lengths of the loops around.
    """
    for step in steps:
        for body in step.bodies:
            _alias(body.enters, known)
            loop = (step.eqn.params["length"],) if step.primitive == "scan" else ()
            inside = (*lengths, *loop)
            yield from _sites(body.steps, avals, known, counts, inside)
        _alias(step.leaves, known)
        for name in _floats(step, avals):
            first = known.get(str(step.operands[0]), "") if step.operands else ""
            known[name] = numbered(name_of(step.eqn), counts)
            where = source_line(step.eqn.source_info.traceback)
            shape = (*lengths, *avals[name].shape)
            value = jax.ShapeDtypeStruct(shape, avals[name].dtype)
            yield Seen(known[name], where, step.eqn, first, value)


def _alias(boundaries: Iterable[RegionBoundary | None], known: dict[str, str]) -> None:
    """Give values behind boundaries the names of the arrays that they stand for."""
    for boundary in boundaries:
        if boundary is not None:
            known[boundary.makes] = known.get(str(boundary.reads[0]), "")


def _floats(step: Step, avals: Mapping[str, Any]) -> list[str]:
    """Return the results of a step without bodies that are float arrays."""
    if step.bodies:
        return []
    return [n for n in step.results if jnp.issubdtype(avals[n].dtype, jnp.floating)]


def _is_whole(eqn: Eqn) -> bool:
    """Return whether an equation is not entered."""
    match eqn.primitive.name:
        case "jit" | "pjit":
            return is_in(file_of(eqn), "jax")
        case name:
            return name not in ENTERED


def name_of(eqn: Eqn) -> str:
    """Return the name of the function that an equation calls, else of its primitive."""
    body = eqn.params.get("call_jaxpr")
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    if body is None or body.jaxpr.debug_info is None:
        return str(eqn.primitive.name)
    return str(body.jaxpr.debug_info.func_name)


class _Adding(ProgramExecutor):
    """Executor that adds an array to each float array of an equation.

    Attributes:
        seen: The sums, in order.
    """

    in_place = frozenset(("jit", "pjit", "checkpoint", "remat", "remat2"))

    def __init__(self, program: Program, added: Iterable[Array]) -> None:
        super().__init__(program)
        self.added, self.seen = iter(added), list[Array]()

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        if name not in _floats(step, self.program.avals):
            return value
        self.seen.append(value + next(self.added))
        return self.seen[-1]

    def on_scan(
        self, step: Step, turn: Turn, carry: list[Any], slices: Any
    ) -> tuple[list[Any], Any]:
        """Run a loop; arrays, and those added to them, have an extent of iterations."""
        (body,) = step.bodies
        inner = all_steps(body.steps)
        count = sum(len(_floats(part, self.program.avals)) for part in inner)
        around = self.added, self.seen

        def watched(carry: list[Any], rows: Any) -> Any:
            own, added = rows
            self.added, self.seen = iter(added), []
            carry, results = turn(carry, own)
            return carry, (results, self.seen)

        rows = slices, list(islice(self.added, count))
        carry, (results, seen) = super().on_scan(step, watched, carry, rows)
        self.added, self.seen = around
        self.seen += seen
        return carry, results


def attach(model: Any, watcher: Watcher) -> Attached:
    """Return a function that shows its calls to a watcher, each before it runs.

    Calls that are traced, as a part of a function under ``jit`` or ``grad``, are not
    shown, nor are those within a comparison.

    Args:
        model: A function, or a module of Equinox or Flax; one of linen is called by
            ``apply``.
        watcher: Consumer of the calls.
    """
    run: Any = model
    if adapter_of(model) is not None and hasattr(model, "apply"):
        run = model.apply
    comparing = local()

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = tree_util.tree_leaves((args, kwargs))
        if not getattr(comparing, "now", False) and not any(map(is_tracer, leaves)):
            number = watcher.due()
            if number:
                comparing.now = True
                try:
                    then = watcher.compare(number, args, kwargs)
                finally:
                    comparing.now = False
                then()
        return run(*args, **kwargs)

    def detach() -> None:
        """Do nothing: the watcher is not due any more."""

    return Attached(call, detach)
