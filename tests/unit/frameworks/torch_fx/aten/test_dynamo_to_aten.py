"""Lowering a dynamo graph to the ATen level."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: TID251  # as dynamo
from torch.utils.checkpoint import checkpoint

from amprewrite.frameworks.torch_fx.aten.dynamo_to_aten import checkpoint_region, lower
from tests.torch_programs import Program


def lowered(function: Any, *args: Any, **parts: Any) -> list[Any]:
    """Return the lowered graphs of a function that dynamo captures."""
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Callable[..., Any]:
        del inputs
        placeholders = module.graph.find_nodes(op="placeholder")
        graphs.append(lower(module, [n.meta["example_value"] for n in placeholders]))
        return module.forward

    torch.compiler.reset()
    torch.compile(Program(function, **parts), backend=backend)(*args)
    return graphs


def calls(module: Any) -> list[str]:
    nodes = module.graph.nodes
    return [
        str(getattr(n.target, "__name__", n.target))
        for n in nodes
        if n.op == "call_function"
    ]


def x() -> Any:
    return torch.randn(4, 8, requires_grad=True)


def test_spellings_of_one_op_become_one() -> None:
    (graph,) = lowered(lambda _, x: (x + x, torch.add(x, x), x.add(x)), x())
    assert calls(graph) == ["add.Tensor"] * 3


def test_layers_keep_their_names() -> None:
    def forward(m: Any, x: Any) -> Any:
        return torch.softmax(m.norm(m.a(x)), -1)

    (graph,) = lowered(forward, x(), a=nn.Linear(8, 8), norm=nn.LayerNorm(8))
    assert calls(graph) == ["linear.default", "layer_norm.default", "softmax.int"]


def test_every_node_has_a_value_and_the_place_it_comes_from() -> None:
    (graph,) = lowered(lambda m, x: m.a(x).exp(), x(), a=nn.Linear(8, 8))
    for node in graph.graph.nodes:
        if node.op == "call_function":
            assert node.meta["val"].shape == (4, 8)
            assert "test_dynamo_to_aten.py" in node.meta["stack_trace"]


def test_the_body_of_a_checkpoint_is_lowered_where_it_stands() -> None:
    def forward(m: Any, x: Any) -> Any:
        return checkpoint(lambda y: torch.tanh(m.a(y)), x, use_reentrant=False).exp()

    (graph,) = lowered(forward, x(), a=nn.Linear(8, 8))
    assert calls(graph)[0] == "checkpoint_region"
    assert "exp.default" in calls(graph)
    (body,) = [m for name, m in graph.named_children() if name.startswith("body_")]
    assert calls(body) == ["linear.default", "tanh.default"]


def test_a_checkpoint_region_is_computed_again_in_the_backward_pass() -> None:
    runs: list[int] = []

    class Body(nn.Module):
        def forward(self, x: Any) -> Any:
            runs.append(1)
            return x.exp()

    value, body = x(), Body()
    traced: Any = body  # any module will do
    checkpoint_region(traced, value).sum().backward()
    assert len(runs) == 2
    assert torch.equal(value.grad, value.detach().exp())


def test_ops_in_regions_of_autocast_have_the_dtypes_that_they_give() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.autocast("cpu"):
            low = m.a(x)
            with torch.autocast("cpu", enabled=False):
                full = m.a(x)
            again = m.a(x)
        return low, full, again, m.a(x)

    (graph,) = lowered(forward, x(), a=nn.Linear(8, 8))
    linears = graph.graph.find_nodes(
        op="call_function", target=torch.ops.aten.linear.default
    )
    low, full = torch.bfloat16, torch.float32
    assert [n.meta["val"].dtype for n in linears] == [low, full, low, full]
    assert not torch.is_autocast_enabled("cpu")


def test_a_failure_leaves_no_region_of_autocast_open() -> None:
    def failing(_: Any) -> Any:
        raise ValueError("on purpose")

    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    enter = torch.amp.autocast_mode._enter_autocast
    graph.call_function(enter, ("cpu", torch.bfloat16, True, True))
    graph.output(graph.call_function(failing, (value,)))
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="on purpose"):
        lower(torch.fx.GraphModule(nn.Module(), graph), [mode.from_tensor(x())])
    assert not torch.is_autocast_enabled("cpu")
