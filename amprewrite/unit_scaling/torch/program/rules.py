"""The rule of every unit of a program: by name, by quadrature, or by a sample."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from amprewrite.errors import UnitScalingError
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    Observer,
    Operands,
    evaluate,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, occurrences
from amprewrite.ir import Op
from amprewrite.unit_scaling.empirical import measure_rule
from amprewrite.unit_scaling.graph.assign import UnitRule, of_region
from amprewrite.unit_scaling.graph.units import Differentiable, Unit
from amprewrite.unit_scaling.moments import NONLINEARITIES
from amprewrite.unit_scaling.program import masked, unscaled
from amprewrite.unit_scaling.rules import derive_rule, rule_of_function, visible_logits
from amprewrite.unit_scaling.torch.program.op_rules import (
    Call,
    operand_nodes,
    rule_by_name,
    terms_of,
)

# Rules from running a part of a program: integrals of regions, and samples of ops.

RUNS = 64
"""Most runs of one op."""
_untyped: Any = torch
_tensor: Any = _untyped.from_numpy
_grad: Any = torch.autograd.grad


def named_region(unit: Unit, call: Call, mult: float) -> UnitRule | None:
    """Return the rule of a region of one op with a name and no parameters."""
    name = call.op.canonical
    given = {k: v for k, v in call.node.kwargs.items() if k != "inplace"}
    if name == "gelu" and given == {"approximate": "tanh"}:
        name, given = "gelu_tanh", {}
    if name == "gelu" and given == {"approximate": "none"}:
        given = {}
    if len(unit.ops) > 1 or name not in NONLINEARITIES:
        return None
    if given or len(call.node.args) > 1:
        return None
    rule = derive_rule(name, mult)
    return of_region(rule, rule.op, named=True)


def run_region(reading: Reading, unit: Unit) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a region as a function of its root, in the dtype of its argument."""
    nodes = {reading.sites[op.name].node: op.canonical for op in unit.ops}
    root, owner = unit.edges[0].value, reading.module
    roots = [node for node, name in reading.leaves.items() if name == root]
    casts = {node for node, name in nodes.items() if name in {"cast", "to"}}

    def run(x: torch.Tensor) -> torch.Tensor:
        values = evaluate(nodes, dict.fromkeys(roots, x), _Region(casts), owner)
        return values[next(reversed(nodes))]

    return run


@dataclass(frozen=True)
class _Region(Observer):
    """Observer that runs a region in the dtype of its root.

    Attributes:
        casts: Nodes that return their operand.
    """

    casts: Collection[Node]

    def on_read(self, executor: Executor, node: Node, operand: Node) -> Any:
        """Return an operand: also one outside of the region, as a choice reads it."""
        if operand not in executor.values and operand.op != "get_attr":
            if not isinstance(operand.meta["val"], torch.Tensor):
                return _extent_of(operand)
            executor.step(operand)
        return super().on_read(executor, node, operand)

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op."""
        return operands[0][0] if node in self.casts else executor.call(node, operands)


def _extent_of(node: Node) -> Any:
    """Return the number that a node has in the example: an extent, computed with.

    Raises:
        UnitScalingError: It is made of data.
    """
    found = node.meta["val"]
    if isinstance(found, (int, float)):
        return found
    if found.node.hint is None:
        msg = "it computes with a number of the data (item), want a tensor in its place"
        raise UnitScalingError(msg)
    return found.node.hint


def region_by_quadrature(
    reading: Reading, unit: Unit, call: Call, mult: float
) -> UnitRule:
    """Return the rule of an elementwise region, by an integral of the traced ops.

    Raises:
        UnitScalingError: It is not finite for Gaussian numbers, or constant.
    """
    run = run_region(reading, unit)

    def value(x: Any) -> Any:
        return run(torch.as_tensor(x, dtype=torch.float64)).detach().numpy()

    def slope(x: Any) -> Any:
        given = torch.as_tensor(x, dtype=torch.float64).clone().requires_grad_()
        (found,) = torch.autograd.grad(run(given).sum(), given)
        return found.numpy()

    try:
        rule = rule_of_function(value, slope, mult, name=call.where)
    except UnitScalingError as error:
        raise _no_rule(call, str(error)) from error
    names = ", ".join(op.canonical for op in unit.ops)
    return of_region(rule, f"the region {names}", named=False)


def region_by_sample(reading: Reading, unit: Unit, call: Call) -> UnitRule:
    """Return the rule of a region with statistics inside, measured on a sample."""
    run = run_region(reading, unit)
    shape = _example_shape(reading, unit.edges[0].value)

    def both(inputs: Sequence[Any], draw: Any) -> Any:
        (x,) = (_tensor(value).requires_grad_() for value in inputs)
        y = run(x)
        given = _tensor(draw(tuple(y.shape)))
        (gradient,) = _grad(y, x, given)
        return y.detach().numpy(), [gradient.numpy()]

    return _measured(both, {-1: shape}, call)


def op_by_sample(
    call: Call,
    samples: Mapping[Node, Any],
    shapes: Mapping[int, tuple[int, ...]],
    inside: Mapping[int, float],
) -> UnitRule:
    """Return the rule of an op, measured on unit Gaussian numbers.

    Operands without a gradient (masks, indices) are those of the example.

    Args:
        call: The op.
        samples: Values of nodes in the example.
        shapes: Shape of each operand with a gradient, by index.
        inside: Factors of operands, by index.

    Raises:
        UnitScalingError: The op cannot be run so, or has no finite scale.
    """
    nodes = operand_nodes(call.reading, call.node)
    executor = Executor(call.reading.module, call.node.graph)

    def both(inputs: Sequence[Any], draw: Any) -> Any:
        drawn = {
            index: _tensor(value).requires_grad_()
            for index, value in zip(shapes, inputs, strict=True)
        }
        position = iter(range(len(nodes)))

        def fill(node: Node) -> Any:
            if isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
                index = next(position)
                if index not in drawn:
                    return samples.get(node)
                return drawn[index] * inside.get(index, 1.0)
            return samples[node]

        operands = executor.operands(call.node, fill)
        leaves = pytree.tree_leaves(executor.call(call.node, operands))
        y = next(v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad)
        given = _tensor(draw(tuple(y.shape)))
        gradients = torch.autograd.grad(y, list(drawn.values()), given)
        return y.detach().numpy(), [gradient.numpy() for gradient in gradients]

    return replace(_measured(both, shapes, call), inside=inside)


def _measured(run: Any, shapes: Mapping[int, tuple[int, ...]], call: Call) -> UnitRule:
    """Return the rule that a sample shows."""
    named = {str(index): shape for index, shape in shapes.items()}
    try:
        with torch.enable_grad(), torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
            torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
            rule = measure_rule(run, named, name=call.where, centred=False, runs=RUNS)
    except (ValueError, RuntimeError, TypeError, StopIteration, KeyError) as error:
        raise _no_rule(call, str(error).strip().split("\n")[0]) from error
    backward = {int(index): f for index, f in rule.factors.backward.items()}
    why = f"at the extents of the example: {rule.why}"
    return UnitRule(rule.factors.forward, backward, rule.kind, why)


def _no_rule(call: Call, found: str) -> UnitScalingError:
    """Return the error that an op has no rule."""
    return UnitScalingError(
        f"no rule of unit scaling for {call.where}, and none can be found by running "
        f"it on unit Gaussian numbers: {found}; write it with ops of "
        "amprewrite.unit_scaling.functional, or detach it"
    )


def example_values(module: GraphModule, args: Any, kwargs: Any) -> Mapping[Node, Any]:
    """Run a program on the example, and return the value of each operand."""
    inputs, operands = pytree.tree_leaves((args, dict(kwargs))), _OperandValues()
    with torch.no_grad(), torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
        Executor(module, module.graph, inputs, operands).run()
    return operands.values


class _OperandValues(Observer):
    """Observer that keeps the values of all operands."""

    def __init__(self) -> None:
        self.values: dict[Node, Any] = {}

    def on_read(self, executor: Executor, node: Node, operand: Node) -> Any:
        """Return an operand."""
        value = self.values[operand] = super().on_read(executor, node, operand)
        return value


def _example_shape(reading: Reading, name: str) -> tuple[int, ...]:
    """Return the extents that a value has in the example."""
    node = next(n for n, leaf in reading.leaves.items() if leaf == name)
    return example_extents(node.meta["val"])


def example_extents(val: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a traced tensor, as it is in the example."""
    extents: list[Any] = [*val.shape]
    return tuple(d if isinstance(d, int) else d.node.hint for d in extents)


MASKS = frozenset({"add", "masked_fill", "sub", "where"})
"""Ops that hide logits."""


class Rules:
    """Rules of the units of one program; the example is run only if one needs it."""

    def __init__(
        self,
        reading: Reading,
        live: Differentiable,
        example: tuple[Any, Mapping[str, Any]],
        mult: Mapping[str, float],
    ) -> None:
        """Take the program, its example and multipliers by canonical name."""
        self.reading, self.live, self.example = reading, live, example
        self.mult = dict(mult)
        self._samples: Mapping[Node, Any] | None = None

    def of(self, units: Sequence[Unit], leave: frozenset[str]) -> dict[str, UnitRule]:
        """Return the rule of each unit but those named in ``leave``.

        Raises:
            UnitScalingError: An op has no rule; a multiplier is for no op.
        """
        found = {u.name: self._of(u) for u in units if u.name not in leave}
        names = {u.ops[0].canonical for u in units if u.is_region and len(u.ops) == 1}
        if unused := [name for name in self.mult if name not in names]:
            msg = (
                f"mult names {', '.join(unused)}; want elementwise ops of the model: "
                f"{', '.join(sorted(names)) or 'there are none'}"
            )
            raise UnitScalingError(msg)
        return found

    def _of(self, unit: Unit) -> UnitRule:
        try:
            return self._found(unit)
        except UnitScalingError:
            if not unit.is_of_loss:
                raise
            op = unit.ops[-1]
            terms = terms_of(self._call(op))
            why = "a part of the loss is left as it is"
            return UnitRule(1.0, {0: terms}, "closed form", why, fixed=True)

    def _found(self, unit: Unit) -> UnitRule:
        """Return the rule of a unit.

        Raises:
            UnitScalingError: There is none.
        """
        op = unit.ops[-1]
        call = self._call(op)
        if unit.is_region:
            return self._of_region(unit, call)
        rule = self._of_masked(call) or rule_by_name(call)
        if rule is not None:
            return rule
        nodes = operand_nodes(self.reading, call.node)
        shapes: dict[int, tuple[int, ...]] = {}
        for edge in unit.edges:
            node = nodes[edge.index]
            if node is None:
                msg = f"no rule of unit scaling for {call.where}"
                raise UnitScalingError(msg)
            shapes[edge.index] = example_extents(node.meta["val"])
        others = len(occurrences(call.node)) > len(shapes)
        inside = {
            i: shape[-1] ** -0.5
            for i, shape in shapes.items()
            if op.traits.group == "recurrent" and call.value(i).kind == "parameter"
            if len(shape) > 1
        }
        rule = op_by_sample(call, self._values() if others else {}, shapes, inside)
        return _of_any_batch(call, rule)

    def _of_masked(self, call: Call) -> UnitRule | None:
        """Return the rule of a softmax with a mask before it, as in the example."""
        if call.op.canonical != "softmax" or not is_masked(call):
            return None
        logits = self._values()[call.node.all_input_nodes[0]]
        axis = call.argument("dim")
        visible = visible_logits(logits.float().numpy(), axis)
        if set(visible) == {logits.shape[axis]}:
            return None
        return masked(visible, logits.shape[axis])

    def _call(self, op: Op) -> Call:
        return Call(op, self.reading.sites[op.name].node, self.reading, self.live)

    def _of_region(self, unit: Unit, call: Call) -> UnitRule:
        """Return the rule of a region."""
        if all(op.canonical in {"cast", "to"} for op in unit.ops):
            return unscaled("changes the dtype")
        alone = len(unit.ops) == 1 and {unit.edges[0].value} == set(call.op.operands)
        mult = self.mult.get(call.op.canonical, 1.0) if alone else 1.0
        rule = named_region(unit, call, mult)
        if rule is not None:
            return rule
        if unit.has_statistic:
            return region_by_sample(self.reading, unit, call)
        return region_by_quadrature(self.reading, unit, call, mult)

    def _values(self) -> Mapping[Node, Any]:
        if self._samples is None:
            self._samples = example_values(self.reading.module, *self.example)
        return self._samples


def is_masked(call: Call) -> bool:
    """Return whether logits come from a sum or a choice with a tensor of data."""
    graph = call.reading.graph
    name = call.op.operands[0]
    while (made := graph.producer.get(name)) is not None:
        if made.canonical in MASKS:
            return any(operand not in call.live.values for operand in made.operands)
        if made.traits.group not in ("cast", "movement") or len(made.operands) != 1:
            break
        name = made.operands[0]
    return False


def _of_any_batch(call: Call, rule: UnitRule) -> UnitRule:
    """Return a measured rule for any number of terms, if it is of a mean of them."""
    terms = terms_of(call)
    if isinstance(terms, int):
        return rule
    node = operand_nodes(call.reading, call.node)[0]
    if node is None:
        return rule
    measured = math.prod(example_extents(node.meta["val"]))
    backward = {i: terms * (f / measured) for i, f in rule.backward.items()}
    return replace(rule, backward=backward)
