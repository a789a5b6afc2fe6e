"""The text of a program parses; its file loads and computes the same."""

import pytest

torch = pytest.importorskip("torch")

import amprewrite
from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.module.program_export import (
    graph_text,
    save_program,
)
from amprewrite.ir.text import parse_graph


def model_and_args():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), (
        torch.randn(2, 4),
    )


def test_the_text_is_short_and_parses():
    model, args = model_and_args()
    text = graph_text(model, args, {})
    assert text.splitlines() == [
        "%_0_weight: f32[3,4] parameter",
        "%_0_bias: f32[3] parameter",
        "%input_1: f32[2,4] input",
        "linear = linear(%input_1, %_0_weight, %_0_bias) -> %linear: f32[2,3]",
        "relu = relu(%linear) -> %relu: f32[2,3]",
        "return %relu",
    ]
    assert [op.name for op in parse_graph(text).ops] == ["linear", "relu"]


def test_a_saved_program_computes_the_same(tmp_path):
    model, args = model_and_args()
    converted = amprewrite.convert(model, args=args)
    path = tmp_path / "model.pt2"
    save_program(converted, args, {}, path)
    loaded = torch.export.load(path).module()
    assert torch.equal(loaded(*args), converted(*args))


def test_what_cannot_be_exported_is_said(tmp_path):
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match="save its plan instead"):
        save_program(Branches(), (torch.ones(2),), {}, tmp_path / "model.pt2")
