"""A graph as plain data gives the same graph again."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module.stored.pickling import (
    OpName,
    StoredGraph,
    without_bodies,
)
from benchmarks.speed_counts import kept_bytes


class Program(torch.nn.Module):
    """Two ops, several results, a nested output."""

    def forward(self, x, y):
        high, _ = torch.max(x + y, dim=-1)
        return {"high": high, "both": [x, y * 2]}


def test_a_graph_survives_a_pickle() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    module = torch.export.export(Program(), (x, y)).module(check_guards=False)
    stored = pickle.loads(pickle.dumps(StoredGraph.of(module.graph)))
    graph = stored.graph()
    assert [n.name for n in graph.nodes] == [n.name for n in module.graph.nodes]
    again = torch.fx.GraphModule(torch.nn.Module(), graph)
    found, wanted = again(x, y), module(x, y)
    assert found["high"].equal(wanted["high"])
    assert found["both"][1].equal(y * 2)


def test_an_operator_that_is_not_there_is_named() -> None:
    assert OpName("aten.add.Tensor").found() is torch.ops.aten.add.Tensor
    with pytest.raises(UnsupportedError, match=r"calls mylib\.gone\.default.*import"):
        OpName("mylib.gone.default").found()


class Branches(nn.Module):
    """Branches inside of branches, and a region without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        def inner(x):
            return torch.cond(x.mean() > 2, self.first, self.second, (x,))

        with torch.no_grad():
            scale = self.second(x).mean()
        return torch.cond(x.sum() > 0, inner, self.first, (x,)) + scale


@pytest.mark.parametrize("training", [False, True])
def test_branches_and_regions_survive_a_pickle(*, training: bool) -> None:
    torch.manual_seed(0)
    x = torch.ones(2, 4)
    made = amprewrite.convert(Branches().eval(), args=(x,), training=training)
    assert made.plan.captured == "captured by torch.export"
    loaded = pickle.loads(pickle.dumps(made))
    for given in (x, -x, 3 * x):
        assert torch.equal(loaded(given), made(given))
    assert loaded.plan == made.plan
    assert torch.equal(made(x), pickle.loads(pickle.dumps(loaded))(x))


def test_a_module_without_bodies_is_given_as_it_is() -> None:
    plain = nn.Sequential(nn.ReLU())
    assert without_bodies(plain) == (plain, {})
    held = nn.Sequential(nn.ReLU(), torch.fx.symbolic_trace(nn.Tanh()))
    kept, bodies = without_bodies(held)
    assert [*kept.named_children()] == [("0", held[0])]
    assert list(bodies) == ["1"]
    assert len(held) == 2, "the module stays as it is"


def normed(*, recompute: bool = False) -> tuple[Any, Any]:
    """Return a converted model that is lowered, and its argument."""
    torch.manual_seed(0)
    layers = nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.5), nn.Linear(512, 256)
    model = nn.Sequential(*layers, nn.LayerNorm(256), nn.Softmax(-1)).train(recompute)
    x = torch.randn(8, 256)
    return amprewrite.convert(model, args=(x,), recompute=recompute), x


def test_a_loaded_program_is_lowered_as_before() -> None:
    made, x = normed()
    loaded = pickle.loads(pickle.dumps(made))
    with torch.no_grad():
        assert torch.equal(loaded(x), made(x))
    assert loaded.plan.lowerings == made.plan.lowerings != ()


def test_a_loaded_model_is_copied_before_its_first_call() -> None:
    made, x = normed()
    copied = copy.deepcopy(pickle.loads(pickle.dumps(made)))
    again = pickle.loads(pickle.dumps(copied))
    with torch.no_grad():
        assert torch.equal(copied(x), made(x))
        assert torch.equal(again(x), made(x))


def test_a_loaded_program_computes_again_what_it_did_before() -> None:
    made, x = normed(recompute=True)
    loaded = pickle.loads(pickle.dumps(made))
    plain = amprewrite.convert(amprewrite.original(made), args=(x,))
    kept = [
        kept_bytes(lambda one=one: one(x).square().sum())
        for one in (made, loaded, plain)
    ]
    assert kept[0] == kept[1] < kept[2]
    for one in made, loaded:
        torch.manual_seed(1)
        one(x).square().sum().backward()
    pairs = zip(made.parameters(), loaded.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
