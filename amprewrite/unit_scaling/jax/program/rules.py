"""The rule of every unit of a program: by name, by quadrature, or by a sample."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from amprewrite.errors import UnitScalingError
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor
from amprewrite.frameworks.jaxpr.program.program import Number
from amprewrite.unit_scaling.empirical import measure_rule
from amprewrite.unit_scaling.graph.assign import UnitRule, of_region
from amprewrite.unit_scaling.graph.units import Unit
from amprewrite.unit_scaling.jax.program.op_rules import (
    Call,
    known_masks,
    mask_ops,
    rule_by_name,
    visible_rows,
)
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.jax.reading.functions import Functional
from amprewrite.unit_scaling.moments import NONLINEARITIES
from amprewrite.unit_scaling.program import masked, unscaled
from amprewrite.unit_scaling.rules import derive_rule, rule_of_function

# Rules from running a part of a program: integrals of regions, and samples of ops.

RUNS = 64
"""Most runs of one op."""
GRID = np.linspace(-7.3, 7.1, 173)
"""Points at which a region is compared with the functions that have a name."""
NEAR = 1e-6
"""Largest difference there: numbers in a program have the precision of float32."""
NEAR_ZERO = np.append(-np.logspace(-12, -1, 221), 0)
"""Points at which a pole is looked for: a constant is often added to a divisor."""
STEEP = 100
"""Ratio of a function there and above 1, from which on it has a pole."""
LEAST = 2**12
"""Points of the smallest run of a region; larger ones have 4 times as many each."""


def region_function(program: Functional, unit: Unit) -> Callable[[Any], Any]:
    """Return a region as a function of its root, on float64 arrays of one dimension."""
    root, (end,) = unit.edges[0].value, unit.ops[-1].results

    def run(x: Any) -> Any:
        values = Evaluator(program.reading, {root: x}, np.float64, None)
        found = values.value(end)
        library: Any = np if isinstance(found, np.ndarray) else jnp
        return library.broadcast_to(found, x.shape)

    return run


class _Padded:
    """A function of JAX that is compiled for few lengths."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self.run = jax.jit(run)

    def __call__(self, x: Any) -> Any:
        size = LEAST
        while size < x.size:
            size *= 4
        padded = np.zeros(size, np.float64)
        padded[: x.size] = x.ravel()
        with tracers.evaluated_now(), jax.enable_x64(True):
            return np.asarray(self.run(padded))[: x.size]


def _value(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the value of a region on arrays of NumPy."""

    def value(x: Any) -> Any:
        with tracers.evaluated_now(), jax.enable_x64(True):
            return np.asarray(run(np.asarray(x, np.float64)))

    return value


def _slope(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the derivative of a region; of a straight line without compiling it."""
    y = _value(run)(GRID)
    rise = (y[-1] - y[0]) / (GRID[-1] - GRID[0])
    line = y[0] + rise * (GRID - GRID[0])
    if np.allclose(y, line, NEAR, NEAR * abs(rise)):
        return functools.partial(np.full_like, fill_value=rise)

    def total(x: Any) -> Any:
        return run(x).sum()

    return _Padded(jax.grad(total))


def region_rule(
    program: Functional, unit: Unit, call: Call, mult: Mapping[str, float]
) -> tuple[UnitRule, str]:
    """Return the rule of an elementwise region, and the name of its function.

    It is looked up where the function has a name, else integrated.

    Raises:
        UnitScalingError: It is not finite for Gaussian numbers, or constant.
    """
    run = region_function(program, unit)
    value = _value(run)
    if _is_of_positive_numbers(value):
        why = "a function of positive numbers, which are no Gaussian ones"
        return UnitRule(1.0, {}, "closed form", why), call.op.canonical
    known = _name(value)
    name = known or call.op.canonical
    factor = mult.get(name, 1.0)
    if known:
        rule = derive_rule(known, factor)
    else:
        slope = _slope(run)
        try:
            rule = rule_of_function(value, slope, factor, name=call.where)
        except UnitScalingError as error:
            if _has_pole(value) or _has_pole(slope):
                why = "a function with a pole at 0, which no Gaussian numbers are given"
                return UnitRule(1.0, {}, "closed form", why), call.op.canonical
            raise _no_rule(call, str(error)) from error
    names = ", ".join(op.canonical for op in unit.ops)
    why = known or f"the region {names}"
    return of_region(rule, why, named=bool(known)), name


def _is_of_positive_numbers(value: Callable[[Any], Any]) -> bool:
    """Return whether a function (a root, a logarithm) is finite there alone."""
    finite = np.isfinite(value(GRID))
    return bool(finite[GRID > 0].all() and not finite[GRID < 0].any())


def _has_pole(value: Callable[[Any], Any]) -> bool:
    """Return whether a function (a reciprocal, or a root's slope) has a pole at 0."""
    near = np.abs(value(np.append(NEAR_ZERO, -NEAR_ZERO)))
    far = np.abs(value(GRID[GRID > 1]))
    return not np.isfinite(near).all() or near.max() > STEEP * far.max()


def _name(value: Callable[[Any], Any]) -> str:
    """Return the name of the function that a region is; empty if it has none."""
    found = value(GRID)
    return next((n for n, y in _named() if np.allclose(found, y, NEAR, NEAR)), "")


@functools.cache
def _named() -> tuple[tuple[str, Any], ...]:
    """Return the values of the functions that have a name."""
    return tuple(
        (name, function.value(GRID, **function.parameters))
        for name, function in sorted(NONLINEARITIES.items(), key=_comes_last)
    )


def _comes_last(item: tuple[str, Any]) -> bool:
    """Return whether a name comes after others: celu is elu, where alpha is 1."""
    return item[0] == "celu"


def region_by_sample(program: Functional, unit: Unit, call: Call) -> UnitRule:
    """Return the rule of a region with statistics inside, measured on a sample."""
    root, (end,) = unit.edges[0].value, unit.ops[-1].results
    aval = program.reading.program.avals[root]

    def run(_turn: Any, x: Any) -> Any:
        values = Evaluator(program.reading, {root: x}, np.float32, int)
        return values.value(end)

    return _measured(run, {-1: tuple(map(int, aval.shape))}, call)


def op_by_sample(call: Call, indices: Sequence[int]) -> UnitRule:
    """Return the rule of an op, measured on unit Gaussian numbers.

    Other operands are made by the program from integers of 0 and true truth values;
    branches are taken in turn.

    Args:
        call: The op.
        indices: Indices of the operands with a gradient.

    Raises:
        UnitScalingError: The op cannot be run so, or has no finite scale.
    """
    step = call.step
    if step is None or step.fence:
        raise _no_rule(call, step.fence if step else "it has no primitive")
    avals = call.program.reading.program.avals
    names = [call.op.operands[index] for index in indices]
    branches = len(step.eqn.params.get("branches", ()))

    def run(turn: Any, *given: Any) -> Any:
        pairs = dict(zip(names, given, strict=True))
        values = Evaluator(call.program.reading, pairs, np.float32, int)
        operands = [
            atom.value if isinstance(atom, Number) else _as(values, avals, atom)
            for atom in step.operands
        ]
        if branches:
            operands[0] = jnp.asarray(turn % branches, operands[0].dtype)
        results = ProgramExecutor(values.program).evaluate(step, operands)
        live = call.program.live.values
        pairs_of = zip(call.op.results, results, strict=True)
        return next(y for name, y in pairs_of if name in live)

    shapes = {
        i: tuple(map(int, avals[n].shape)) for i, n in zip(indices, names, strict=True)
    }
    return _measured(run, shapes, call)


def _as(values: Evaluator, avals: Mapping[str, Any], name: str) -> Any:
    """Return a value in the dtype that it was traced with."""
    return jnp.asarray(values.value(name), avals[name].dtype)


def _measured(
    run: Callable[..., Any],
    shapes: Mapping[int, tuple[int, ...]],
    call: Call,
) -> UnitRule:
    """Return the rule that a sample shows.

    Args:
        run: Takes the number of the run, and the inputs.
        shapes: Shapes of the inputs, by index.
        call: The op.
    """
    named = {str(index): shape for index, shape in shapes.items()}

    @jax.jit
    def pull(turn: Any, given: Any, back: Any) -> Any:
        y, pulled = jax.vjp(functools.partial(run, turn), *given)
        return y, pulled(back.astype(y.dtype))

    turns = itertools.count()

    with tracers.evaluated_now():
        try:
            inputs = [jax.ShapeDtypeStruct(s, np.float32) for s in named.values()]
            shape = jax.eval_shape(run, 0, *inputs).shape

            def sample(inputs: Sequence[Any], draw: Any) -> Any:
                y, gradients = pull(next(turns), list(inputs), draw(tuple(shape)))
                return _array(y), list(map(_array, gradients))

            rule = measure_rule(
                sample, named, name=call.where, centred=False, runs=RUNS
            )
        except (ValueError, TypeError, NotImplementedError, StopIteration) as error:
            raise _no_rule(call, str(error).strip().split("\n")[0]) from error
    backward = {int(index): f for index, f in rule.factors.backward.items()}
    why = f"at the extents of the call: {rule.why}"
    return UnitRule(rule.factors.forward, backward, rule.kind, why)


def _array(x: Any) -> Any:
    return np.asarray(x, np.float32)


def _no_rule(call: Call, found: str) -> UnitScalingError:
    """Return the error that an op has no rule."""
    return UnitScalingError(
        f"no rule of unit scaling for {call.where}, and none can be found by running "
        f"it on unit Gaussian numbers: {found}; write it with ops of "
        "amprewrite.unit_scaling.functional_jax, or wrap it in jax.lax.stop_gradient"
    )


Samples = dict[Any, UnitRule]
"""Rules that were measured, by op and extents; with ``any`` the first extent."""


@dataclass(frozen=True)
class Known:
    """Facts about other calls of a program.

    Attributes:
        samples: Rules that were measured for other extents; new ones are added.
        example: Arrays of the call that masks are counted of; empty if it is another.
    """

    samples: Samples = field(default_factory=Samples)
    example: Sequence[Any] = ()


def find_rules(
    program: Functional,
    units: Sequence[Unit],
    leave: frozenset[str],
    mult: Mapping[str, float],
    known: Known,
) -> dict[str, UnitRule]:
    """Return the rule of each unit but those named in ``leave``.

    Args:
        program: The program.
        units: Its units.
        leave: Names of the residual additions.
        mult: Multipliers by name of an elementwise function.
        known: Facts about other calls.

    Raises:
        UnitScalingError: An op has no rule; a multiplier is for no op.
    """
    names, samples = set[str](), known.samples
    inputs = program.reading.program.inputs
    masks = known_masks(dict(zip(inputs, known.example, strict=False)))
    found: dict[str, UnitRule] = {}
    for unit in units:
        if unit.name not in leave:
            try:
                found[unit.name] = _of_masked(program, unit, samples, masks) or _of(
                    program, unit, mult, names, samples
                )
            except UnitScalingError:
                if not unit.is_of_loss:
                    raise
                found[unit.name] = unscaled("a part of the loss is left as it is")
    if unused := [name for name in mult if name not in names]:
        msg = (
            f"mult names {', '.join(unused)}; want elementwise functions of the "
            f"program: {', '.join(sorted(names)) or 'there are none'}"
        )
        raise UnitScalingError(msg)
    return found


def _of_masked(
    program: Functional, unit: Unit, samples: Samples, masks: Mapping[str, Any]
) -> UnitRule | None:
    """Return the rule of a softmax with the mask of the example, if it has one.

    It holds for all calls: a trace has no numbers for the masks of others.
    """
    call = Call(unit.ops[-1], program)
    function = call.function
    if call.op.canonical != "softmax" or function is None or not mask_ops(call):
        return None
    _, *rest = program.reading.graph.values[unit.edges[0].value].shape
    key = (unit.name, "mask", tuple(rest))
    if masks and (visible := visible_rows(call, masks)):
        samples[key] = masked(visible, function.size)
    return samples.get(key)


def _of(
    program: Functional,
    unit: Unit,
    mult: Mapping[str, float],
    names: set[str],
    samples: Samples,
) -> UnitRule:
    call = Call(unit.ops[-1], program)
    if not unit.is_region:
        rule = rule_by_name(call)
        if rule is not None:
            return rule
        indices = [edge.index for edge in unit.edges]
        return _kept(samples, call, unit, lambda: op_by_sample(call, indices))
    if all(op.canonical == "cast" for op in unit.ops):
        return unscaled("changes the dtype")
    if unit.has_statistic:
        region = functools.partial(region_by_sample, program, unit, call)
        return _kept(samples, call, unit, region)
    try:
        rule, name = region_rule(program, unit, call, mult)
    except UnitScalingError as error:
        return _without_integral(call, unit, samples, error)
    names.add(name)
    return rule


def _without_integral(
    call: Call, unit: Unit, samples: Samples, error: UnitScalingError
) -> UnitRule:
    """Return the rule of a region that cannot be integrated, or raise the error."""
    if len(unit.ops) > 1 or call.op.native != "custom_jvp_call":
        raise error
    return _kept(samples, call, unit, lambda: _of_custom(call))


def _kept(
    samples: Samples, call: Call, unit: Unit, measure: Callable[[], UnitRule]
) -> UnitRule:
    """Return the rule that was measured for an op, and measure it once.

    Its forward factor is that of the first call with other first extents: the function
    of a small batch is that of a large one. Gradients follow the batch.
    """
    values = call.program.reading.graph.values
    shapes = tuple(values[edge.value].shape for edge in unit.edges)
    key = (unit.name, call.op.native, shapes)
    if key not in samples:
        found = measure()
        rows = tuple(("any", *shape[1:]) for shape in shapes)
        first = samples.setdefault((unit.name, call.op.native, rows), found)
        samples[key] = replace(found, forward=first.forward)
    return samples[key]


def _of_custom(call: Call) -> UnitRule:
    """Return the rule of a function with a derivative of its own, by a sample."""
    found = op_by_sample(call, [0])
    return UnitRule(found.forward, {-1: found.backward[0]}, found.kind, found.why)
