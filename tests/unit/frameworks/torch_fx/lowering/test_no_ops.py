"""Ops that return their operand."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.lowering.simplify import remove_no_ops


class Model(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = nn.functional.dropout(x, 0.5, self.training)
        z = nn.functional.feature_alpha_dropout(y.float(), 0.5, self.training)
        return z.to(torch.float32).to(torch.float64).to(torch.float32) + 1


def graph_of(*, train: bool) -> Any:
    program = torch.export.export(Model().train(train), (torch.ones(2, 4),))
    return program.module().graph


def targets(graph: Any) -> list[str]:
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_dropouts_in_eval_mode_and_equal_casts_are_removed() -> None:
    graph = graph_of(train=False)
    casts = sum("to.dtype" in name for name in targets(graph))
    remove_no_ops(graph)
    left = [name for name in targets(graph) if "metadata" not in name]
    assert left == ["aten.to.dtype", "aten.to.dtype", "aten.add.Tensor"]
    assert casts > len(left) - 1


def test_dropouts_in_train_mode_stay() -> None:
    graph = graph_of(train=True)
    remove_no_ops(graph)
    assert sum("dropout" in name for name in targets(graph)) == 2
