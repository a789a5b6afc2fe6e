"""Train a graph network of PyTorch Geometric on graphs of several sizes."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.data.data import BaseData
from torch_geometric.nn import GCNConv, global_mean_pool

import amprewrite


class Network(nn.Module):
    """Two convolutions, and a linear layer on the mean of each graph's nodes."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.first, self.second = GCNConv(4, 32), GCNConv(32, 32)
        self.last = nn.Linear(32, 2)

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, graphs: int
    ) -> torch.Tensor:
        """Return the scores of each graph, f32[graphs, 2]."""
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        return self.last(global_mean_pool(x, graph, graphs))


def graphs(count: int) -> Batch:
    """Return random graphs, labelled by the sign of their mean first feature."""
    made = list[BaseData]()
    for _ in range(count):
        nodes = int(torch.randint(5, 12, ()))
        x = torch.randn(nodes, 4) + torch.randn(1, 4)
        edges = torch.randint(nodes, (2, 3 * nodes))
        label = (x[:, :1].mean() > 0).long().reshape(1)
        made.append(Data(x=x, edge_index=edges, y=label))
    return Batch.from_data_list(made)


def main() -> None:
    """Train on batches with other numbers of nodes and edges each."""
    torch.manual_seed(0)
    model = Network()
    converted = amprewrite.convert(model)
    optimizer = torch.optim.Adam(converted.parameters(), lr=1e-2)
    losses = list[float]()
    for _ in range(40):
        batch: Any = graphs(16)
        scores = converted(batch.x, batch.edge_index, batch.batch, 16)
        loss = functional.cross_entropy(scores, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    print(converted.plan.summary())
    print(f"{len(converted.plans)} programs, loss {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
