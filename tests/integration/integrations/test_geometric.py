"""Graph networks of torch_geometric, on graphs and mini-batches of any size."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
geometric = pytest.importorskip("torch_geometric")

from torch import nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

import amprewrite

SIZES = ((5, 6), (7, 9, 4), (3,), (6, 6, 8, 9))


class Network(nn.Module):
    """Two graph convolutions and a classifier of whole graphs."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.first, self.second = convolution(8, 16), convolution(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, data: Any) -> Any:
        x = self.first(data.x, data.edge_index).relu()
        x = self.second(x, data.edge_index).relu()
        return self.head(global_mean_pool(x, data.batch))


def graph(nodes: int, seed: int) -> Any:
    made = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=made)
    return Data(
        x=torch.randn(nodes, 8, generator=made),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.tensor([seed % 3]),
    )


def error(found: Any, expected: Any) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("convolution", [GCNConv, GATConv])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batches_of_graphs(convolution: Any, mode: str) -> None:
    torch.manual_seed(0)
    model = Network(convolution).train(mode == "train")
    expected = copy.deepcopy(model)
    converted = amprewrite.convert(model)
    for sizes in SIZES:
        batch: Any = Batch.from_data_list([graph(n, n) for n in sizes])
        found, wanted = converted(batch), expected(batch)
        assert 1e-4 < error(found, wanted) < 1e-2
        if mode == "train":
            functional.cross_entropy(found, batch.y).backward()
            functional.cross_entropy(wanted, batch.y).backward()
    if mode == "train":
        grads: Any = zip(converted.parameters(), expected.parameters(), strict=True)
        pairs = [(a.grad.flatten(), b.grad.flatten()) for a, b in grads]
        ours, theirs = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
        assert 1e-4 < error(ours, theirs) < 3e-2
    linears = [d for p in converted.plans for d in p.decisions if d.op_class == "allow"]
    assert {d.precision for d in linears} == {"bfloat16"}
    assert len(converted.plans) <= 2  # of one graph or a batch, not one for each size
