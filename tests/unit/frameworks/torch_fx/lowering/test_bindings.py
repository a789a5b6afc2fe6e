"""Python callables of ATen ops."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph

from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.lowering.flat_runner import binding_of

aten: Any = torch.ops.aten
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def node_of(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a node whose tensor arguments are nodes with these values."""
    graph = Graph()

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = value
        return node

    given = tuple(map(made, args))
    named = {name: made(value) for name, value in kwargs.items()}
    return graph.call_function(target, given, named)


CASES = [
    (aten.linear.default, (X, X, X[:, 0]), {}),
    (aten.add.Tensor, (X, X), {"alpha": 2}),
    (aten.add.Tensor, (X, 2.0), {}),
    (aten.view.default, (X, [8, 4]), {}),
    (aten.layer_norm.default, (X, [8], X[0], X[1]), {}),
    (aten.to.dtype, (X, torch.bfloat16), {}),
    (aten.softmax.int, (X, -1, torch.float32), {}),
    (aten.sum.dim_IntList, (X, [0]), {"dtype": torch.float64}),
    (aten.mean.dim, (X, [-1], True), {}),
    (aten.gelu.default, (X,), {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("target", "args", "kwargs"), CASES, ids=str)
def test_a_binding_computes_what_the_op_does(
    target: Any, args: Any, kwargs: Any
) -> None:
    found = binding_of(node_of(target, *args, **kwargs))
    assert found is not operators.builtin_of(target)
    assert torch.equal(found(*args, **kwargs), target(*args, **kwargs))


def test_an_overload_that_a_binding_would_not_take_is_called_itself() -> None:
    """``torch.mul(x, 2)`` is another overload, with another kernel before autograd."""
    target = aten.mul.Scalar
    found = binding_of(node_of(target, X, 2.0))
    assert torch.equal(found(X, 2.0), X * 2)


def test_what_is_not_known_is_called_as_it_is() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    unknown = graph.call_function(aten.relu.default, (x,))
    assert binding_of(unknown) is operators.builtin_of(aten.relu.default)
    assert binding_of(node_of(len, X)) is len
    for op in (aten.relu_.default, aten.rand_like.default):
        assert binding_of(node_of(op, X)) is operators.builtin_of(op)


def test_no_random_number_is_drawn_to_compare() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    binding_of(node_of(aten.dropout.default, X, 0.5, True))
    binding_of(node_of(aten.rand.default, [2, 2]))
    assert torch.equal(torch.get_rng_state(), state)
