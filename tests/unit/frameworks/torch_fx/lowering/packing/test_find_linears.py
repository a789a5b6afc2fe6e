"""Linear layers of a graph, however they are written."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.lowering.packing.kernels import OfMatrix
from amprewrite.frameworks.torch_fx.lowering.packing.pack_layers import linears
from tests.torch_programs import Program

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def forward(m: Any, x: Any) -> Any:
    flat = x.view(6, 4)
    return (
        m.layer(x),
        nn.functional.linear(x, m.turned.t()),
        torch.addmm(m.bias, flat, m.turned),
        torch.addmm(m.bias, flat, m.layer.weight.T),
        flat.mm(m.turned),
        x @ m.turned,
        x @ m.layer.weight.transpose(0, 1),
        torch.addmm(m.bias, flat, m.turned, alpha=2),  # no layer
        torch.addmm(flat @ m.turned, flat, m.turned),  # its bias is a matrix
        x @ x.mT,
        x @ m.stack,
    )


def test_each_form_is_found_and_runs_as_it_is_written() -> None:
    parts = {
        "layer": nn.Linear(4, 5),
        "turned": nn.Parameter(torch.linspace(-1, 1, 20).reshape(4, 5)),
        "bias": nn.Parameter(torch.ones(5)),
        "stack": nn.Parameter(torch.ones(2, 4, 5)),
    }
    model = Program(forward, **parts).eval()
    program = torch.export.export(model, (X,)).module()
    found = list(linears(program.graph))
    outputs: Any = program.graph.output_node().args[0]
    places = [outputs.index(one.node) for one in found if one.node in outputs]
    assert places == [0, 1, 2, 3, 4, 5, 6]
    assert len(found) == 8  # with the product inside of the ninth
    wanted = model(X)
    for one, place in zip(found, places, strict=False):
        held = model.layer.weight if "layer" in one.weight.name else model.turned
        assert one.layout == OfMatrix(transposed=held is model.turned)
        assert (one.bias is not None) is (place in (0, 2, 3))
        bias = None if one.bias is None else (model.layer.bias, model.bias)[place > 0]
        x = X if one.operand.op == "placeholder" else X.view(6, 4)
        assert torch.equal(one.run(x, held, bias), wanted[place])
