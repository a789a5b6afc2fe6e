"""Convolutions of a graph that read the channels last, and their windows."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering.channels_last import LAST
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import OfWindow, Window
from amprewrite.frameworks.torch_fx.lowering.packing.pack_layers import (
    Layer,
    convolutions,
)
from tests.torch_programs import Program

X = torch.linspace(-1, 1, 2 * 4 * 81).reshape(2, 4, 9, 9)


def forward(m: Any, x: Any) -> Any:
    return (
        m.plain(x),
        m.stepping(x),
        m.same(x),
        functional.conv2d(x, m.plain.weight, padding="valid"),
        m.uneven(x),  # two zeros on one side, one on the other
        functional.conv2d(x, m.plain.weight * 2),  # no attribute
        m.line(x[:, :, 0]),  # no image
    )


def found_in(model: Any, *, marked: bool) -> list[Layer]:
    graph = torch.export.export(model, (X,)).module().graph
    for node in graph.nodes:
        if marked and "conv" in str(node.target):
            node.meta[LAST] = True
    return list(convolutions(graph))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_windows_are_found_and_layers_run_as_they_are_written() -> None:
    parts = {
        "plain": nn.Conv2d(4, 6, 3),
        "stepping": nn.Conv2d(4, 6, 3, (2, 1), (1, 0), 2, groups=2, bias=False),
        "same": nn.Conv2d(4, 6, 3, padding="same", dilation=2),
        "uneven": nn.Conv2d(4, 6, 4, padding="same"),
        "line": nn.Conv1d(4, 6, 3),
    }
    model = Program(forward, **parts).eval()
    assert found_in(model, marked=False) == []
    found = found_in(model, marked=True)
    assert [one.layout for one in found] == [
        OfWindow(Window((1, 1), (0, 0), (1, 1), 1)),
        OfWindow(Window((2, 1), (1, 0), (2, 2), 2)),
        OfWindow(Window((1, 1), (2, 2), (2, 2), 1)),
        OfWindow(Window((1, 1), (0, 0), (1, 1), 1)),
    ]
    parts["valid"] = parts["plain"]
    for one, name in zip(found, ("plain", "stepping", "same", "valid"), strict=True):
        layer, wanted = parts[name], model(X)[found.index(one)]
        bias = None if one.bias is None else layer.bias
        assert torch.equal(one.run(X, layer.weight, bias), wanted)
        again = one.layout.plain_layer(X, layer.weight, bias)
        torch.testing.assert_close(again, wanted)
