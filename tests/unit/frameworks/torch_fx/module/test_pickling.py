"""A graph as plain data gives the same graph again."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module.pickling import OpName, StoredGraph


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
