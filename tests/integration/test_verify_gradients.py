"""``verify(gradients=True)`` judges the gradients: a lost or a wrong one is not ok."""

from typing import Any

import pytest

import amprewrite
from amprewrite.errors import VerifyError

torch = pytest.importorskip("torch")

from torch import nn

ATEN = torch.ops.aten


class Net(nn.Module):
    """Two layers after a table, with two outputs, one of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.up = nn.Embedding(20, 32), nn.Linear(32, 64)
        self.down, self.spare = nn.Linear(64, 32), nn.Linear(4, 4)

    def forward(self, ids):
        h = torch.nn.functional.gelu(self.up(self.table(ids)))
        y = self.down(h)
        return y, y.argmax(-1) * 0, h.mean()


def args() -> tuple[Any, ...]:
    return (torch.arange(16).view(2, 8) % 20,)


def converted(change: Any = None) -> tuple[Any, Any]:
    """Return a model, and its conversion with a change behind the activation."""
    torch.manual_seed(0)
    model = Net().train()
    found = amprewrite.convert(model, "bf16", args=args())
    graph = found.rewritten.graph
    if change is not None:
        node = next(n for n in graph.nodes if n.name == "gelu")
        readers = list(node.users)
        with graph.inserting_before(node.next):
            made = change(graph, node)
        for reader in readers:
            reader.replace_input_with(node, made)
    return model, found


def detached(graph: Any, node: Any) -> Any:
    made = graph.call_function(ATEN.detach.default, (node,))
    made.meta = dict(node.meta)
    return made


def scaled(factor: float) -> Any:
    """Return a change that keeps a value, and multiplies its gradient."""

    def change(graph: Any, node: Any) -> Any:
        nodes = [
            graph.call_function(ATEN.mul.Tensor, (node, factor)),
            graph.call_function(ATEN.mul.Tensor, (detached(graph, node), factor - 1)),
        ]
        nodes.append(graph.call_function(ATEN.sub.Tensor, tuple(nodes)))
        for made in nodes:
            made.meta = dict(node.meta)
        return nodes[-1]

    return change


def test_right_gradients_are_ok():
    report = amprewrite.verify(*converted(), args(), gradients=True)
    assert report.ok
    spare = next(row for row in report.gradients if row.name == "spare.weight")
    assert (spare.zero, spare.relative_l2) == (True, 0)
    assert all(row.bound and 0 < row.bound < 1 for row in report.gradients)


@pytest.mark.parametrize("change", [detached, scaled(2.0), scaled(-1.0), scaled(1.25)])
def test_lost_and_wrong_gradients_are_not_ok(change):
    model, faulty = converted(change)
    assert not amprewrite.verify(model, faulty, args()).violations
    report = amprewrite.verify(model, faulty, args(), gradients=True)
    assert not report.ok
    beyond = {row.name for row in report.gradients if row.is_violation}
    assert beyond == {"table.weight", "up.weight", "up.bias"}
    text = report.summary()
    assert "NOT OK" in text
    assert "gradient of up.weight: " in text
    assert ("zero everywhere" in text) == (change is detached)


def test_the_bound_of_the_caller_is_one_on_gradients_too():
    model, faulty = converted(detached)
    with pytest.raises(VerifyError, match=r"gradient of up\.weight: zero everywhere"):
        amprewrite.verify(model, faulty, args(), gradients=True, rtol=0.05)
    assert amprewrite.verify(*converted(), args(), gradients=True, rtol=0.05).ok
    with pytest.raises(VerifyError, match=r"gradient of .*want at most 1e-06"):
        amprewrite.verify(*converted(), args(), gradients=True, rtol=1e-6)
    assert not amprewrite.verify(model, faulty, args(), rtol=0.05).gradients


class Wrapped(nn.Module):
    """A model by hand, without a plan, that does something to the gradients."""

    def __init__(self, model: Any, what: str) -> None:
        super().__init__()
        self.layer, self.what = model.layer, what
        self.spare = model.spare

    def forward(self, x):
        y = self.layer(x)
        if self.what == "all":
            return y.detach()
        if self.what == "one":
            return nn.functional.linear(x, self.layer.weight.detach(), self.layer.bias)
        if self.what == "more":
            return (
                y + 0 * self.spare.sum() + self.spare.sum() - self.spare.sum().detach()
            )
        return y


class Layer(nn.Module):
    """A layer, and a parameter that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("", set()),
        ("all", {"layer.weight", "layer.bias", "args.0"}),
        ("one", {"layer.weight"}),
        ("more", {"spare"}),
    ],
)
def test_gradients_of_a_model_without_a_plan(what, names):
    torch.manual_seed(0)
    model = Layer()
    report = amprewrite.verify(
        model, Wrapped(model, what), (torch.randn(4, 8),), gradients=True
    )
    assert {row.name for row in report.gradients if row.is_violation} == names
    assert report.ok == (not names)


class Round(torch.autograd.Function):
    """Rounding with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        del ctx
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        del ctx
        return grad


class Rounding(Layer):
    """A layer with rounded results."""

    def forward(self, x):
        return Round.apply(self.layer(x) * 4)


class Plain(Layer):
    """The same without the backward of its own."""

    def forward(self, x):
        return (self.layer(x) * 4).round()


def test_a_custom_backward_that_is_lost_is_not_ok():
    torch.manual_seed(0)
    model, lost = Rounding().train(), Plain().train()
    lost.load_state_dict(model.state_dict())
    x = (torch.randn(4, 8),)
    found = amprewrite.convert(lost, "off", args=x)
    report = amprewrite.verify(model, found, x, gradients=True)
    assert any("gradient of layer.weight: zero" in line for line in report.problems)
    assert amprewrite.verify(model, model, x, gradients=True).ok
