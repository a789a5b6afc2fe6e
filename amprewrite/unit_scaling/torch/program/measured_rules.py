"""Rules from running a part of a program: integrals of regions, and samples of ops."""

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
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.unit_scaling.graph import Unit, UnitRule, of_region
from amprewrite.unit_scaling.moments import NONLINEARITIES
from amprewrite.unit_scaling.rules import derive_rule, measure_rule, rule_of_function
from amprewrite.unit_scaling.torch.program.call import Call, operand_nodes

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
