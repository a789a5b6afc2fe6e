"""Rules of primitives by name: closed forms from extents, and integrals of softmax."""

from collections.abc import Callable, Mapping
from typing import Any

from amprewrite.unit_scaling.graph import UnitRule
from amprewrite.unit_scaling.jax.program.call import Call
from amprewrite.unit_scaling.jax.program.masks import visible_rows
from amprewrite.unit_scaling.jax.reading.functions import DROPOUT, MEAN
from amprewrite.unit_scaling.program import (
    CLOSED,
    gather,
    masked,
    product,
    quotient,
    rule_by_table,
    unscaled,
)
from amprewrite.unit_scaling.rules import Factors, derive_rule, extents, shapes

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
    factors = extents.matmul(rows=rows, inner=inner, columns=columns)
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
    factors = extents.dropout(p=1 - function.share)
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
