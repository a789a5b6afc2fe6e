"""Ops that compute the same of the same operands."""

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn
from torch.fx import Graph

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.simplify import MERGED, merge_repeats
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


def of_constants(*constants: Any) -> int:
    """Return how many of the products of an input with numbers are merged."""
    graph = Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(aten.mul.Tensor, (x, one)) for one in constants]
    graph.output(graph.call_function(aten.stack.default, (made,)))
    for node in graph.nodes:
        node.meta["val"] = X.clone()
    return sum(len(one.ops) for one in merge_repeats(graph))


def test_numbers_of_two_types_or_signs_are_no_repeats() -> None:
    assert of_constants(0.0, -0.0, 0, 1, 1.0, True) == 0
    assert of_constants(0.0, 0.0, -0.0, -0.0, 1, 1, 2) == 3


def test_other_operands_and_another_order_are_no_repeats() -> None:
    def forward(_: Any, x: Any) -> Any:
        return (x - 1) * (1 - x) + (x.sum(0) - x.sum(1).sum(0)) * x.sum(0, keepdim=True)

    assert not merged(forward, X)


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


@pytest.mark.parametrize("captured_as_one", [True, False])
def test_a_tensor_that_is_given_twice_is_written_to_as_both(
    *, captured_as_one: bool
) -> None:
    class Writing(nn.Module):
        def forward(self, x: Any, v: Any) -> Any:
            before = v.exp()
            x.add_(1)
            return before + v.exp()

    x = torch.zeros(2)
    args = (x, x.view(2)) if captured_as_one else (x, torch.zeros(2))
    made = amprewrite.convert(Writing().eval(), "off", args=args)
    for given in (x := torch.zeros(2), x), (x := torch.zeros(2), x.view(2)):
        with torch.no_grad():
            torch.testing.assert_close(made(*given), torch.full((2,), 1 + torch.e))


class Counting(nn.Module):
    """Writes to a buffer between two looks at its argument, and at its views."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("other", self.count.view(2))
        self.plain = self.count.view(2)

    count: Tensor
    other: Tensor

    def forward(self, x: Any) -> Any:
        before = torch.stack([x.exp(), self.other.exp(), self.plain.exp()])
        self.count.add_(1)
        return before + torch.stack([x.exp(), self.other.exp(), self.plain.exp()])


def test_own_memory_that_is_an_argument_or_has_two_names_is_written_to() -> None:
    made = amprewrite.convert(Counting().eval(), "off", args=(torch.zeros(2),))
    with torch.no_grad():
        found = made(made.count)
    torch.testing.assert_close(found, torch.full((3, 2), 1 + torch.e))


class Norms(nn.Module):
    """Updates statistics in a norm twice, with looks at them between."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))

    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Any) -> Any:
        statistics = self.running_mean, self.running_var
        still = nn.functional.batch_norm(x, *statistics)
        looks = [self.running_mean.exp(), still.sum((0, 2))]
        first = self.run(x, *statistics)
        self.run(x, *statistics)  # for its statistics alone
        still = nn.functional.batch_norm(x, *statistics)
        looks += [self.running_mean.exp(), still.sum((0, 2))]
        return first + self.run(x, *statistics), torch.stack(looks)


@pytest.mark.parametrize(
    "run",
    [
        lambda x, m, v: nn.functional.batch_norm(x, m, v, training=True),
        lambda x, m, v: nn.functional.instance_norm(x, m, v, use_input_stats=True),
    ],
)
def test_statistics_that_a_norm_updates_are_written_to(run: Any) -> None:
    """No schema declares these writes."""
    x = torch.randn(4, 3, 5)
    made, plain = (Norms(run).eval() for _ in range(2))
    made = amprewrite.convert(made, "off", args=(x,))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(made(x), plain(x))
    torch.testing.assert_close(made.running_mean, plain.running_mean)
    torch.testing.assert_close(made.running_var, plain.running_var)


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
