"""Ops that compute the same of the same operands."""

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.repeats import MERGED, merge_repeats
from tests.torch_programs import Program

aten = torch.ops.aten
X = torch.linspace(-2, 2, 6).reshape(2, 3)


def exported(forward: Any, *args: Any) -> tuple[Any, Graph]:
    """Return a program, and its graph."""
    program = torch.export.export(Program(forward), args)
    module: Any = program.module()
    for node in module.graph.find_nodes(op="call_module"):
        module.graph.erase_node(node)  # a check of extents, which reads the arguments
    return module, module.graph


def merged(forward: Any, *args: Any) -> tuple[str, ...]:
    """Return the merged ops of a program, which gives the same bits without them."""
    module, graph = exported(forward, *args)
    wanted = module(*args)
    found = merge_repeats(graph)
    graph.lint()
    module.recompile()
    results = module(*args)
    pairs = zip(results, wanted, strict=True) if isinstance(wanted, tuple) else ()
    assert all(torch.equal(a, b) for a, b in pairs or [(results, wanted)])
    assert len(found) < 2
    return tuple(name for one in found for name in one.ops)


def test_equal_ops_are_one_with_all_that_follows() -> None:
    def forward(_: Any, x: Any) -> Any:
        return sum((x.exp() + 1).sqrt() * number for number in range(1, 4))

    names = merged(forward, X)
    kinds = [name.rstrip("_0123456789") for name in names]
    assert kinds == ["exp", "add", "sqrt"] * 2


def test_numbers_of_two_types_or_signs_and_other_order_are_no_repeats() -> None:
    def forward(_: Any, x: Any) -> Any:
        n = x.to(torch.int64)
        return n * 2, n * 2.0, x * 0.0, x * -0.0, x - 1, 1 - x, x.sum(0), x.sum(1)

    assert not merged(forward, X)
    graph = Graph()
    x = graph.placeholder("x")
    zeros = [graph.call_function(aten.mul.Tensor, (x, zero)) for zero in (0.0, -0.0)]
    ones = [graph.call_function(aten.mul.Tensor, (x, one)) for one in (1, 1.0, True)]
    graph.output(graph.call_function(aten.cat.default, ([*zeros, *ones],)))
    assert not merge_repeats(graph)


def test_values_that_are_written_to_are_apart() -> None:
    def operand(_: Any, x: Any) -> Any:
        y = x + 1
        before = y.exp()
        y.mul_(2)
        return before + y.exp()

    def result(_: Any, x: Any) -> Any:
        one, two = x.exp(), x.exp()
        one.mul_(2)
        return one + two

    def view(_: Any, x: Any) -> Any:
        y = x + 1
        one, two = y[0].exp(), y[0].exp()
        one.add_(1)
        return one + two + y[1]

    for forward in (operand, result):
        assert not merged(forward, X)
    assert merged(view, X) == ("select_1",)


def test_results_that_the_caller_gets_are_apart() -> None:
    def forward(_: Any, x: Any) -> Any:
        return x.exp(), x.exp(), x.exp().t(), x.exp() + 1

    assert not merged(forward, X)


def test_draws_are_apart() -> None:
    def forward(_: Any, x: Any) -> Any:
        one, two = (nn.functional.dropout(x, 0.5, training=True) for _ in range(2))
        return one - two + torch.rand(3) - torch.rand(3)

    _, graph = exported(forward, X)
    assert not merge_repeats(graph)


@pytest.mark.parametrize(
    ("between", "are_one"),
    [
        (lambda graph, _: graph.call_function(torch._C._set_grad_enabled, (False,)), 0),
        (lambda graph, x: graph.call_function(torch.sin, (x,)), 0),
        (lambda graph, x: graph.call_method("sin", (x,)), 0),
        (lambda graph, x: graph.call_function(operator.mul, (x, x)), 1),
        (lambda graph, x: graph.call_function(aten.sin.default, (x,)), 1),
    ],
)
def test_after_a_change_of_the_state_of_torch_nothing_is_known(
    between: Any, are_one: int
) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    one = graph.call_function(aten.exp.default, (x,))
    between(graph, x)
    two = graph.call_function(aten.exp.default, (x,))
    last = graph.call_function(aten.add.Tensor, (one, two))
    graph.output(graph.call_function(aten.neg.default, (last,)))
    for node in graph.nodes:
        node.meta["val"] = X.clone()
    assert len(merge_repeats(graph)) == are_one


class Masked(nn.Module):
    """Layers that each add the same bias, masked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Any, mask: Any) -> Any:
        for layer in self.layers:
            bias = torch.where(mask, self.table, torch.finfo(x.dtype).min)
            x = torch.softmax(layer(x) @ x.mT + bias, -1) @ x
        return x


def test_a_mask_of_each_layer_is_made_once_in_inference() -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(2, 4, 8), torch.ones(4, 4).tril().bool()
    model = Masked().eval()
    made = amprewrite.convert(model, args=(x, mask))
    plan = amprewrite.convert(model, args=(x, mask), lowering=False)
    (found,) = (one for one in made.plan.lowerings if one.name == "repeats")
    assert found.what == MERGED
    assert {"where_1", "where_2"} <= set(found.ops)
    with torch.no_grad():
        assert torch.equal(made(x, mask), plan(x, mask))
    trained = amprewrite.convert(Masked().train(), args=(x, mask))
    assert not any(one.name == "repeats" for one in trained.plan.lowerings)
