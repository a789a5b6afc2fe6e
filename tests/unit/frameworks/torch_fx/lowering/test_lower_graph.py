"""Lowered programs against the graphs of their plans."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.api import graph_text
from amprewrite.frameworks.torch_fx.lowering.lower_graph import lower_graph

X = torch.linspace(-1, 1, 64).reshape(2, 4, 8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        mask = torch.full((4, 4), float("-inf")).triu(1)
        weights = (q @ k.mT / 8**0.5 + mask).softmax(-1)
        return x + self.drop(self.out(self.drop(weights) @ v))


def calls(graph: Any) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def test_the_graph_of_the_plan_stays_and_the_bits_are_equal() -> None:
    model = Attention().eval()
    made: Any = amprewrite.convert(model, args=(X,))
    plain: Any = amprewrite.convert(model, args=(X,), lowering=False)
    graph = made.rewritten.graph
    before = calls(graph)
    assert torch.equal(made(X), plain(X))
    assert torch.equal(made(X), made.rewritten(X))
    assert calls(graph) == before == calls(plain.rewritten.graph)
    lowered = lower_graph(graph, made.rewritten).graph
    assert calls(graph) == before
    assert calls(lowered) <= before - 4  # two dropouts, the mask and its triangle


@pytest.mark.parametrize("lowering", [True, False])
def test_training_has_the_same_gradients(*, lowering: bool) -> None:
    torch.manual_seed(0)
    model = Attention().train()
    made: Any = amprewrite.convert(model, args=(X,), lowering=lowering)
    torch.manual_seed(1)
    made(X).square().sum().backward()
    found = {n: p.grad.clone() for n, p in made.named_parameters()}
    made.zero_grad()
    torch.manual_seed(1)
    made.rewritten(X).square().sum().backward()
    assert all(torch.equal(p.grad, found[n]) for n, p in made.named_parameters())


def test_dynamo_captures_are_lowered_too() -> None:
    torch.compiler.reset()
    model = Attention().eval()
    one: Any = amprewrite.convert(model)
    two: Any = amprewrite.convert(model, lowering=False)
    assert torch.equal(one(X), two(X))


def test_nothing_is_kept_of_a_call_on_fake_tensors() -> None:
    """A mask that was computed there would be a fake tensor in all later calls."""
    fakes = pytest.importorskip("torch._subclasses.fake_tensor")
    model = Attention().eval()
    made: Any = amprewrite.convert(model, args=(X,))
    with fakes.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(made(mode.from_tensor(X)), fakes.FakeTensor)
    assert torch.equal(made(X), made.rewritten(X))
    assert type(made(X)) is Tensor


def test_the_plans_of_all_programs_and_the_report_say_what_was_lowered() -> None:
    model = Attention().eval()
    made: Any = amprewrite.convert(model, args=(X,))
    made(X[:1])  # another program
    names = [one.name for plan in made.plans for one in plan.lowerings]
    assert names == ["no_ops", "constants"] * 2
    assert made.plans[0].lowerings[0].ops == ("dropout", "dropout_1")
    assert made.plans[0].lowerings[1].ops == ("full", "triu")
    assert [plan.lowerings[1].bytes for plan in made.plans] == [64, 64]
    assert "removed" in made.plans[0].explain("dropout")
    assert "# constants: full, triu computed once" in graph_text(made, (X,), {})
    assert "calls run lowered: 2 ops" in str(amprewrite.verify(model, made, (X,)))
    bare: Any = amprewrite.convert(model, args=(X,), lowering=False)
    assert bare.plan.lowerings == ()
    assert "#" not in graph_text(bare, (X,), {})
    again: Any = amprewrite.convert(model, plan=made.plans[0], args=(X,))
    assert again.plan.lowerings == made.plans[0].lowerings


def test_plans_of_graphs_of_dynamo_say_what_was_lowered() -> None:
    torch.compiler.reset()
    made: Any = amprewrite.convert(Attention().eval())
    made(X)
    assert [one.name for one in made.plan.lowerings] == ["no_ops", "constants"]
