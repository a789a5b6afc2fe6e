"""Rules of ATen ops by name: closed forms from extents, and integrals of softmax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.ops import argument, packet_name
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, held, occurrences
from amprewrite.ir import Op, ProgramGraph
from amprewrite.unit_scaling import rules, shapes
from amprewrite.unit_scaling.graph.assign import UnitRule
from amprewrite.unit_scaling.graph.scales import extent
from amprewrite.unit_scaling.graph.units import Differentiable
from amprewrite.unit_scaling.program import (
    CLOSED,
    OpCall,
    gather,
    product,
    quotient,
    rule_by_table,
    unscaled,
)
from amprewrite.unit_scaling.rules import Factors, derive_rule

# One op of a captured program with its arguments, as rules read them.


@dataclass(frozen=True)
class Call(OpCall):
    """One op, with the facts that its rule needs.

    Attributes:
        op: The op.
        node: Its node.
        reading: The program.
        live: The part of it that is differentiated.
    """

    op: Op
    node: Node
    reading: Reading
    live: Differentiable

    @property
    def graph(self) -> ProgramGraph:
        """The program."""
        return self.reading.graph

    @property
    def differentiable(self) -> Differentiable:
        """The part of the program that is differentiated."""
        return self.live

    def argument(self, name: str) -> Any:
        """Return an argument by its name in the schema."""
        return argument(self.node, name)

    def index(self, name: str) -> int | None:
        """Return the operand index of a tensor argument; None if it is not given."""
        position = 0
        named = zip(operators.formals(self.node.target), self.node.args, strict=False)
        given = [(formal.name, arg) for formal, arg in named]
        for formal, arg in (*given, *self.node.kwargs.items()):
            inside: list[Node] = []
            torch.fx.map_arg(arg, inside.append)
            count = sum(len(list(held(self.reading.leaves.get(n)))) for n in inside)
            if formal == name:
                return position if count else None
            position += count
        return None

    @property
    def result(self) -> tuple[Any, ...]:
        """The extents of the first result, as those of values made before it."""
        graph = self.graph
        known: dict[str, tuple[str, int]] = {}
        before = (graph.values[name] for name in self.op.operands)
        for value in (*before, *graph.values.values()):
            for axis, size in enumerate(value.shape):
                if isinstance(size, str):
                    known.setdefault(size, (value.name, axis))
        sizes = graph.values[self.op.results[0]].shape
        return tuple(d if isinstance(d, int) else extent(*known[d]) for d in sizes)


def operand_nodes(reading: Reading, node: Node) -> Sequence[Node | None]:
    """Return for each operand of an op the node; None where a node has several."""
    found: list[Node | None] = []
    for used in occurrences(node):
        names = list(held(reading.leaves.get(used)))
        found += [used] if len(names) == 1 else [None] * len(names)
    return found


Find = Callable[[Call], UnitRule | None]
"""Returns the rule of a call, or None where none is known."""


def _rule(factors: Factors, indices: Mapping[str, int | None], why: str) -> UnitRule:
    """Return factors by operand index."""
    backward = {
        index: factors.backward[name]
        for name, index in indices.items()
        if index is not None and name in factors.backward
    }
    return UnitRule(factors.forward, backward, CLOSED, why)


def _sum_over(shape: tuple[Any, ...], axes: tuple[int, ...]) -> Any:
    """Return the product of the extents along some dimensions."""
    return shapes.count(shape[axis] for axis in axes)


def _linear(call: Call) -> UnitRule:
    names = {"input": "input", "weight": "weight", "bias": "bias"}
    found = {ours: call.index(name) for ours, name in names.items()}
    factors = shapes.of_linear(call.shape(0), call.shape(1))
    return _rule(factors, found, f"sums of {call.shape(1)[-1]} terms")


def _addmm(call: Call) -> UnitRule | None:
    bias = call.value(0)
    if bias.kind != "parameter" or len(bias.shape) != 1:
        return None
    rows, inner = call.shape(1)
    factors = rules.linear(fan_in=inner, fan_out=call.shape(2)[1], batch=rows)
    indices = {"bias": 0, "input": 1, "weight": 2}
    return _rule(factors, indices, f"sums of {inner} terms")


def _matmul(call: Call) -> UnitRule | None:
    left, right = call.shape(0), call.shape(1)
    if min(len(left), len(right)) < shapes.MATRIX:
        return None
    factors = shapes.of_matmul(left, right, call.result[:-2])
    return _rule(factors, {"left": 0, "right": 1}, f"sums of {left[-1]} terms")


def _conv(call: Call) -> UnitRule | None:
    if packet_name(call.node.target) not in {"conv1d", "conv2d", "conv3d"}:
        return None
    groups = call.argument("groups")
    factors = shapes.of_conv(call.shape(0), call.shape(1), call.result, groups)
    names = {name: call.index(name) for name in ("input", "weight", "bias")}
    return _rule(factors, names, "sums over channels and taps; no padding counted")


def _embedding(call: Call) -> UnitRule:
    tokens = shapes.count(call.shape(1))
    factors = rules.embedding(vocabulary=call.shape(0)[0], tokens=tokens)
    return _rule(factors, {"weight": 0}, "rows that are looked up")


def _norm(call: Call) -> UnitRule:
    shape, weight = call.shape(0), call.index("weight")
    kept = len(call.shape(weight)) if weight is not None else 1
    channels = call.op.canonical not in {"layer_norm", "rms_norm"}
    rest = (shape[0], *shape[2:]) if channels else shape[: len(shape) - kept]
    factors = rules.norm(batch=shapes.count(rest))
    names = {name: call.index(name) for name in ("input", "weight", "bias")}
    return _rule(factors, names, "unit as it is")


def _softmax(call: Call) -> UnitRule | None:
    axis = call.argument("dim")
    size = call.result[axis] if isinstance(axis, int) else None
    if not isinstance(size, int):
        return None
    found = derive_rule("softmax", size=size)
    backward = {0: found.factors.backward["input"]}
    why = f"{size} Gaussian logits, none masked"
    return UnitRule(found.factors.forward, backward, found.kind, why)


def _attention(call: Call) -> UnitRule | None:
    query, key, value = (call.shape(index) for index in range(3))
    sizes = (query[-2], key[-2], query[-1], value[-1])
    batches = {call.value(index).shape[:-2] for index in range(3)}
    if call.argument("attn_mask") is not None or len(batches) > 1:
        return None  # a mask, or groups of queries for one key
    if not all(isinstance(size, int) for size in sizes):
        return None
    scale = call.argument("scale")
    found = derive_rule(
        "scaled_dot_product_attention",
        query[-1] * (query[-1] ** -0.5 if scale is None else scale),
        queries=sizes[0],
        keys=sizes[1],
        head=sizes[2],
        value_head=sizes[3],
        causal=call.argument("is_causal"),
        p=call.argument("dropout_p"),
    )
    backward = dict(enumerate(found.factors.backward.values()))
    why = f"{sizes[1]} keys, logits of scale 1"
    return UnitRule(found.factors.forward, backward, found.kind, why)


def terms_of(call: Call) -> Any:
    """Return the number of terms of which a loss is the mean; 1 if it is no mean."""
    mean = call.op.traits.group == "loss" and call.argument("reduction") == 1
    return shapes.count(call.shape(0)) if mean else 1


def _cross_entropy(call: Call) -> UnitRule | None:
    logits = call.shape(0)
    classes = logits[1 if len(logits) > 1 else 0]
    if not isinstance(classes, int):
        return None
    each = derive_rule("cross_entropy", classes=classes, batch=1).factors
    rows = shapes.count((*logits[:1], *logits[2:])) if len(logits) > 1 else 1
    terms = rows if call.argument("reduction") == 1 else 1
    why = f"{classes} classes; the loss is left as it is"
    backward = {0: each.backward["input"] * terms}
    if call.is_live(1):  # probabilities
        backward[1] = terms
    return UnitRule(1.0, backward, "quadrature", why, fixed=True)


def _mse(call: Call) -> UnitRule | None:
    factors = rules.mse_loss(size=terms_of(call))
    backward = {0: factors.backward["input"], 1: factors.backward["target"]}
    why = "the loss is left as it is"
    return UnitRule(1.0, backward, CLOSED, why, fixed=True)


def _dropout(call: Call) -> UnitRule:
    drops = call.argument("train") and call.argument("p") < 1
    p = float(call.argument("p")) if drops else 0.0
    return _rule(rules.dropout(p=p), {"input": 0}, f"{p:g} are dropped")


def _add(call: Call) -> UnitRule:
    if not (call.is_live(0) and call.is_live(1)):
        return unscaled("adds a constant")
    left, right, result = call.shape(0), call.shape(1), call.result
    for index, other in ((0, left), (1, right)):
        if call.value(index).kind == "parameter" and len(other) <= 1:
            copies = shapes.copies(other, result)
            return UnitRule(1.0, {index: copies**-0.5}, CLOSED, "a bias, zero at first")
    factors = shapes.of_add(left, right, result)
    return _rule(factors, {"left": 0, "right": 1}, "two independent terms")


def _expand(call: Call) -> UnitRule:
    copies = shapes.copies(call.shape(0), call.result)
    return UnitRule(1.0, {0: copies**-0.5}, CLOSED, "copies, of which gradients add up")


def _mean(call: Call) -> UnitRule:
    terms = _sum_over(call.shape(0), _axes(call))
    why = "a mean is left as it is: of a batch, or of values that have a mean"
    return UnitRule(1.0, {0: terms}, CLOSED, why, fixed=True)


def _sum(call: Call) -> UnitRule:
    axes = _axes(call)
    if not _is_inner(call, axes):
        return UnitRule(1.0, {}, CLOSED, "a sum over the batch is left as it is")
    terms = _sum_over(call.shape(0), axes)
    return UnitRule(terms**-0.5, {}, CLOSED, "independent terms")


def _axes(call: Call) -> tuple[int, ...]:
    """Return the dimensions that a reduction sums over."""
    rank, given = len(call.shape(0)), call.argument("dim")
    axes = [given] if isinstance(given, int) else list(given or range(rank))
    return tuple(sorted({axis % rank for axis in axes})) if rank else ()


def _is_inner(call: Call, axes: tuple[int, ...]) -> bool:
    """Return whether a reduction leaves the batch: dimension 0 stays, and others."""
    return 0 not in axes and len(axes) < len(call.shape(0))


def _average_pool(call: Call) -> UnitRule | None:
    before = shapes.count(call.shape(0)[2:])
    after = shapes.count(call.result[2:])
    if not isinstance(before, int) or not isinstance(after, int):
        return None
    why = "means over windows are left as they are"
    return UnitRule(1.0, {0: before / after}, CLOSED, why)


BY_NAME: Mapping[str, Find] = {
    "adaptive_avg_pool1d": _average_pool,
    "adaptive_avg_pool2d": _average_pool,
    "adaptive_avg_pool3d": _average_pool,
    "add": _add,
    "addmm": _addmm,
    "batch_norm": _norm,
    "batch_norm_inference": _norm,
    "conv": _conv,
    "cross_entropy_loss": _cross_entropy,
    "div": quotient,
    "dropout": _dropout,
    "embedding": _embedding,
    "expand": _expand,
    "gather": gather,
    "group_norm": _norm,
    "layer_norm": _norm,
    "linear": _linear,
    "matmul": _matmul,
    "mean": _mean,
    "mse_loss": _mse,
    "mul": product,
    "rms_norm": _norm,
    "scaled_dot_product_attention": _attention,
    "softmax": _softmax,
    "sub": _add,
    "sum": _sum,
}
"""Rules by canonical name."""


def rule_by_name(call: Call) -> UnitRule | None:
    """Return the rule of an op by name; None where it has none."""
    return rule_by_table(BY_NAME, call)
