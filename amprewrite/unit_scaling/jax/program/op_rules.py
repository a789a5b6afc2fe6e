"""Rules of primitives by name: closed forms from extents, and integrals of softmax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jnp
from amprewrite.frameworks.jaxpr.program.program import Step
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling import rules, shapes
from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.graph.units import Differentiable
from amprewrite.unit_scaling.jax.reading.evaluate import Evaluator
from amprewrite.unit_scaling.jax.reading.functions import (
    DROPOUT,
    MEAN,
    Function,
    Functional,
)
from amprewrite.unit_scaling.jax.reading.program import Reading, Slicer
from amprewrite.unit_scaling.program import (
    CLOSED,
    OpCall,
    gather,
    masked,
    product,
    quotient,
    rule_by_table,
    unscaled,
)
from amprewrite.unit_scaling.rules import Factors, derive_rule, visible_logits

# One op of a traced program with its arguments, as rules read them.


@dataclass(frozen=True)
class Call(OpCall):
    """One op, with the facts that its rule needs.

    Attributes:
        op: The op.
        program: The program that it is in.
    """

    op: Op
    program: Functional

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        return self.program.reading.graph

    @property
    def differentiable(self) -> Differentiable:
        """The part of the program that is differentiated."""
        return self.program.live

    @property
    def step(self) -> Step | None:
        """The step; None at the boundary of a body."""
        return self.program.reading.steps.get(self.op.name)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of its primitive."""
        return {} if self.step is None else self.step.eqn.params

    @property
    def function(self) -> Function | None:
        """The function that it stands for, if any."""
        return self.program.functions.get(self.op.name)

    def is_bias(self, index: int) -> bool:
        """Return whether an operand of a sum is a bias: a parameter, perhaps moved.

        It has one dimension, or those that a weight gives to the other operand.
        """
        slicer, name = self.program.slicer, self.op.operands[index]
        if slicer.is_parameter(name):
            return True
        graph = self.graph
        made = graph.producer.get(self.op.operands[1 - index])
        source = graph.values[slicer.origin(name)]
        if made is None or made.canonical != "matmul" or source.kind != "parameter":
            return False
        params = self.program.reading.steps[made.name].eqn.params
        contracted, batch = params["dimension_numbers"]
        weight = graph.values[made.operands[1]].shape
        held = {*contracted[1], *batch[1]}
        free = [d for axis, d in enumerate(weight) if axis not in held]
        return [d for d in graph.values[name].shape if d != 1] == free


# Masks of a softmax: those that a program makes itself, and those of the example.

MASKS = frozenset({"add", "sub", "where"})
"""Ops that hide logits."""
LARGEST = 2**24
"""Elements of the logits above which they are not computed."""


def known_masks(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that masks may be made of: integers and truth values.

    Args:
        inputs: Arrays of the example by name; none if the program is traced for a
            transformation, which knows no numbers.
    """
    if any(tracers.is_tracer(x) for x in inputs.values()):
        return {}
    return {
        name: np.asarray(x)
        for name, x in inputs.items()
        if jnp.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    }


def visible_rows(
    call: Call, masks: Mapping[str, Any] | None = None
) -> dict[int, int] | None:
    """Return how many rows of a softmax have how many logits that no mask hides.

    Args:
        call: The softmax.
        masks: Values of integer inputs. Others are masks of ones: a trace has no
            numbers for them.

    Returns:
        None where there is no mask, or the logits have symbols or too many elements.
    """
    function = call.function
    if function is None:
        return None
    for op in mask_ops(call):
        visible = _visible(call.program.slicer, op, function.size, masks or {})
        if visible is not None:
            return visible
    return None


def mask_ops(call: Call) -> list[Op]:
    """Return the ops before a softmax, or in it, that may hide logits.

    One that a mask of ones makes do nothing counts as a part of the softmax.
    """
    function, slicer = call.function, call.program.slicer
    graph = slicer.reading.graph
    before = graph.producer.get(call.op.operands[0])
    members = function.members if function else frozenset[str]()
    inside = [op for op in graph.ops if op.name in members]
    known = slicer.impure | slicer.uniform
    return [
        op
        for op in (before, *inside)
        if op and op.canonical in MASKS and not known.issuperset(op.operands)
    ]


def _visible(
    slicer: Slicer, mask: Op, size: int, masks: Mapping[str, Any]
) -> dict[int, int] | None:
    """Return the number of rows by their number of visible logits; None if all are."""
    live = [n for n in mask.operands if n in slicer.live.values]
    avals = slicer.reading.program.avals
    shape = avals[mask.results[0]].shape
    if len(live) != 1 or not all(isinstance(d, int) for d in shape):
        return None
    if np.prod(shape) > LARGEST or shape[-1:] != (size,):
        return None
    given = {**masks, live[0]: np.zeros(avals[live[0]].shape, np.float32)}
    with tracers.evaluated_now():
        values = Evaluator(_through_loops(slicer.reading), given, np.float32, int)
        logits = np.broadcast_to(np.asarray(values.value(mask.results[0])), shape)
    visible = visible_logits(logits, -1)
    return None if set(visible) == {size} else visible


def _through_loops(reading: Reading) -> Reading:
    """Return a reading in which constants of loops have the values from outside."""
    entered = {
        op.results[0]: op.operands[0]
        for op in reading.graph.ops
        if op.name in reading.turns and op.operands
    }
    return replace(reading, same={**reading.same, **entered})


Find = Callable[[Call], UnitRule | None]
"""Returns the rule of a call, or None where none is known."""


def _ordered(factors: Factors, why: str) -> UnitRule:
    """Return factors by operand index, in their order."""
    return UnitRule(
        factors.forward, dict(enumerate(factors.backward.values())), CLOSED, why
    )


def _count(shape: tuple[Any, ...], axes: Any) -> Any:
    """Return the product of the extents along some dimensions."""
    return shapes.count(shape[axis] for axis in axes)


def _dot(call: Call) -> UnitRule | None:
    if len(call.op.operands) < 2:  # noqa: PLR2004  # a number
        return None
    (left_sums, right_sums), (left_batch, right_batch) = call.params[
        "dimension_numbers"
    ]
    left, right = call.shape(0), call.shape(1)
    inner = _count(left, left_sums)
    rows = _free(left, (*left_sums, *left_batch))
    columns = _free(right, (*right_sums, *right_batch))
    factors = rules.matmul(rows=rows, inner=inner, columns=columns)
    return _ordered(factors, f"sums of {inner} terms")


def _free(shape: tuple[Any, ...], others: tuple[int, ...]) -> Any:
    return _count(shape, [i for i in range(len(shape)) if i not in others])


def _conv(call: Call) -> UnitRule | None:
    params = call.params
    if params["batch_group_count"] != 1:
        return None
    numbers = params["dimension_numbers"]
    given = (call.shape(0), call.shape(1), call.result)
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    pairs = zip(given, specs, strict=True)
    x, weight, y = (tuple(shape[i] for i in spec) for shape, spec in pairs)
    factors = shapes.of_conv(x, weight, y, params["feature_group_count"])
    return _ordered(factors, "sums over channels and taps; no padding counted")


def _softmax(call: Call) -> UnitRule | None:
    function = call.function
    if function is None:
        return None
    if visible := visible_rows(call):
        return masked(visible, function.size)
    found = derive_rule("softmax", size=function.size)
    backward = {0: found.factors.backward["input"]}
    why = f"{function.size} Gaussian logits, none masked"
    return UnitRule(found.factors.forward, backward, found.kind, why)


def _log_probabilities(call: Call) -> UnitRule | None:
    function = call.function
    if function is None:
        return None
    unit = derive_rule("cross_entropy", classes=function.size, batch=1).factors
    why = f"{function.size} classes; the loss is left as it is"
    return UnitRule(1.0, {0: unit.backward["input"]}, "quadrature", why, fixed=True)


def _norm(call: Call) -> UnitRule | None:
    function = call.function
    if function is None:
        return None
    backward: dict[int, Any] = {0: 1.0}
    if len(call.op.operands) > 1:
        copies = shapes.count(call.result) / shapes.count(call.shape(1))
        backward[1] = copies**-0.5
    return UnitRule(1.0, backward, CLOSED, "unit as it is")


def _dropout(call: Call) -> UnitRule | None:
    function = call.function
    if function is None:
        return None
    factors = rules.dropout(p=1 - function.share)
    return _ordered(factors, f"{1 - function.share:g} are dropped")


def _mean(call: Call) -> UnitRule | None:
    function = call.function
    if function is None:
        return None
    why = "a mean is left as it is: of a batch, or of values that have a mean"
    return UnitRule(1.0, {0: function.size}, CLOSED, why, fixed=True)


def _add(call: Call) -> UnitRule:
    if not (call.is_live(0) and call.is_live(1)):
        return unscaled("adds a constant")
    left, right, result = call.shape(0), call.shape(1), call.result
    for index, other in ((1, right), (0, left)):
        if call.is_bias(index) and not call.is_bias(1 - index):
            copies = shapes.copies(other, result)
            return UnitRule(1.0, {index: copies**-0.5}, CLOSED, "a bias, zero at first")
    return _ordered(shapes.of_add(left, right, result), "two independent terms")


def _expand(call: Call) -> UnitRule:
    copies = shapes.count(call.result) / shapes.count(call.shape(0))
    return UnitRule(1.0, {0: copies**-0.5}, CLOSED, "copies, of which gradients add up")


def _sum(call: Call) -> UnitRule | None:
    if call.op.native != "reduce_sum":
        return None
    axes = call.params["axes"]
    if 0 in axes or len(axes) == len(call.shape(0)):
        return unscaled("a sum over the batch is left as it is")
    terms = _count(call.shape(0), axes)
    return UnitRule(terms**-0.5, {}, CLOSED, "independent terms")


def _enter(call: Call) -> UnitRule:
    turns = call.program.reading.turns.get(call.op.name)
    if turns is None:
        return unscaled("passes into a body", fixed=True)
    why = "read in each turn of a loop, whose gradients add up"
    return UnitRule(1.0, {0: turns**-0.5}, CLOSED, why, fixed=True)


def _passes(_call: Call) -> UnitRule:
    return unscaled("passes through a loop", fixed=True)


BY_NAME: Mapping[str, Find] = {
    DROPOUT: _dropout,
    MEAN: _mean,
    "add": _add,
    "carry": _passes,
    "conv": _conv,
    "cross_entropy": _log_probabilities,
    "div": quotient,
    "enter": _enter,
    "expand": _expand,
    "gather": gather,
    "layer_norm": _norm,
    "leave": _passes,
    "log_softmax": _log_probabilities,
    "matmul": _dot,
    "mul": product,
    "rms_norm": _norm,
    "softmax": _softmax,
    "sub": _add,
    "sum": _sum,
}
"""Rules by canonical name."""


def rule_by_name(call: Call) -> UnitRule | None:
    """Return the rule of an op by name; None where it has none."""
    return rule_by_table(BY_NAME, call)
