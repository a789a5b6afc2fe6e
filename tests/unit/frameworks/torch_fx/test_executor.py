"""Runs of a graph node by node, and the hooks of their consumers."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    Observer,
    default_dtype,
    evaluate,
    widened,
)

aten: Any = torch.ops.aten
X = torch.randn(4, 16)
WIDE = {torch.float32: torch.float64}


def exported(function, *args):
    """The program of a function."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, *args):
            return function(self.linear, *args)

    return capture(Model(), args, {}).module


def executor_of(module, *args, **options) -> Executor:
    return Executor(module, module.graph, args, **options)


class Names(Observer):
    """Names of the ops that run, in order."""

    def __init__(self):
        self.names = []

    def on_result(self, executor, node, value):
        self.names.append(executor.prefix + node.name)
        return value


class Whole(Names):
    """Names of the ops that run, with bodies as parts of their ops."""

    def enters(self, executor, node):
        del executor, node
        return False


def test_values_are_dropped_after_their_last_use():
    graph = torch.fx.symbolic_trace(nn.Sequential(*[nn.ReLU() for _ in range(5)])).graph
    for node in graph.nodes:
        if node.op == "call_module":
            node.op, node.target = "call_function", torch.relu
    alive = []

    class Alive(Observer):
        def on_result(self, executor, node, value):
            executor.shadows[node] = value
            alive.append((len(executor.values), len(executor.shadows)))
            return value

    executor = Executor(None, graph, [X], Alive())
    assert torch.equal(executor.run(), X.relu())
    assert alive == [(1, 1)] + [(1, 2)] * 4


def test_weights_are_widened_where_they_are_read():
    linear = nn.Linear(2, 2)
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    graph.output(graph.call_function(torch.mm, (x, weight)))
    given = torch.eye(2, dtype=torch.float64)
    executor = Executor(linear, graph, [given], dtypes=WIDE)
    held = []
    for node in graph.nodes:
        if node.op != "output":
            executor.step(node)
            held.append(weight in executor.values)
            executor.release(node)
    assert held == [False, False, True]
    assert weight not in executor.values
    assert torch.equal(executor.outputs(), linear.weight.double())
    with pytest.raises(KeyError):
        _ = executor.values[x]


def test_a_program_runs_in_other_dtypes():
    def run(_, x):
        return torch.ones(4, 16, dtype=torch.float32) + torch.full((4, 16), 0.1) + x

    module = exported(run, X)
    (found,) = executor_of(module, X.double(), dtypes=WIDE).run()
    assert torch.equal(found, 1 + torch.tensor(0.1, dtype=torch.float64) + X.double())


def test_the_default_dtype_comes_back():
    with default_dtype(torch.float64):
        assert torch.zeros(1).dtype == torch.float64
    with pytest.raises(ZeroDivisionError), default_dtype(torch.float64):
        raise ZeroDivisionError
    assert torch.zeros(1).dtype == torch.float32


def test_dtypes_are_replaced_wherever_they_are():
    found = widened((torch.float32, [torch.int8], {"dtype": torch.float32}), WIDE)
    assert found == (torch.float64, [torch.int8], {"dtype": torch.float64})


def test_operands_and_results_are_seen_and_replaced():
    class Doubled(Observer):
        def on_read(self, executor, node, operand):
            value = super().on_read(executor, node, operand)
            return 2 * value if node.name == "tanh" else value

        def on_result(self, executor, node, value):
            return super().on_result(executor, node, value) + 1

    module = exported(lambda _, x: torch.tanh(x).exp(), X)
    (found,) = executor_of(module, X, observer=Doubled()).run()
    assert torch.equal(found, ((2 * X).tanh() + 1).exp() + 1)


def no_gradients(linear, x):
    with torch.no_grad():
        y = torch.tanh(linear(x))
    return torch.sigmoid(y)


def test_a_body_that_runs_in_place_is_entered():
    module = exported(no_gradients, X)
    inside, outside = Names(), Whole()
    (found,) = executor_of(module, X, observer=inside).run()
    (whole,) = executor_of(module, X, observer=outside).run()
    assert torch.equal(found, whole)
    assert torch.equal(found, module(X))
    assert any(name.endswith(".tanh") for name in inside.names)
    assert not any("." in name for name in outside.names)


def test_a_region_of_autocast_is_entered():
    def run(linear, x):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x)

    module = exported(run, X)
    names = Names()
    (found,) = executor_of(module, X, observer=names).run()
    assert any(name.endswith(".linear") for name in names.names)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, module(X))


def bodies(**functions):
    """A module with the graphs of functions, by name."""
    owner = nn.Module()
    for name, function in functions.items():
        owner.add_module(name, torch.fx.symbolic_trace(function))
    return owner


def test_branches_are_called_whole():
    cond = torch.ops.higher_order.cond
    owner = bodies(sin=lambda x: (x.sin(),), cos=lambda x: (x.cos(),))
    graph = Graph()
    test, x = graph.placeholder("test"), graph.placeholder("x")
    branches = graph.get_attr("sin"), graph.get_attr("cos")
    graph.output(graph.call_function(cond, (test, *branches, (x,))))
    for truth in (True, False):
        names = Names()
        (found,) = Executor(owner, graph, [torch.tensor(truth), X], names).run()
        assert torch.equal(found, X.sin() if truth else X.cos())
        assert names.names == ["cond"]


def test_a_loop_is_called_whole():
    while_loop = torch.ops.higher_order.while_loop
    owner = bodies(test=lambda n, _: n < 3, step=lambda n, x: (n + 1, x.sin()))
    graph = Graph()
    carried = graph.placeholder("n"), graph.placeholder("x")
    both = graph.get_attr("test"), graph.get_attr("step")
    graph.output(graph.call_function(while_loop, (*both, carried, ())))
    _, found = Executor(owner, graph, [torch.tensor(0), X]).run()
    assert torch.equal(found, X.sin().sin().sin())


def test_modules_and_methods_are_called():
    module = torch.fx.symbolic_trace(
        nn.Sequential(nn.Linear(16, 4), nn.Flatten(0)).eval()
    )
    (output,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_method("add", (output.args[0], 1)),)
    module.recompile()
    found = executor_of(module, X).run()
    assert torch.equal(found, module(X))


def test_buffers_are_not_written():
    class Counter(nn.Module):
        count: Any

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.same = self.count

        def forward(self, x):
            self.count.add_(1)
            return x + self.same

    counter = Counter()
    module = torch.export.export(counter, (X,)).module(check_guards=False)
    before = {name: b.clone() for name, b in module.named_buffers()}
    (found,) = executor_of(module, X).run()
    assert torch.equal(found, X + 1)
    assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())


def test_two_graphs_run_in_step():
    module = exported(lambda _, x: x.sin().cos().tanh(), X)
    executor = executor_of(module, X)
    cos = executor.named["cos"]
    executor.run_to(cos)
    (value,) = executor.values.values()
    assert torch.equal(value, X.sin())
    executor.run_nodes((cos,))
    (found,) = executor.finish()
    assert torch.equal(found, X.sin().cos().tanh())


def test_nodes_are_evaluated_from_the_values_of_others():
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    nodes = [graph.call_function(aten.add.Tensor, (x, y), {"alpha": 2})]
    for _ in range(3000):  # deeper than Python's stack
        nodes.append(graph.call_function(aten.add.Tensor, (nodes[-1], 1)))
    values = evaluate(nodes, {x: torch.ones(2), y: torch.ones(2)})
    assert torch.equal(values[nodes[-1]], torch.full((2,), 3003.0))
