"""The text of a program parses; its files load and compute the same."""

import sys

import pytest

torch = pytest.importorskip("torch")

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError, UnsupportedError
from amprewrite.frameworks.torch_fx.saved.program_export import (
    graph_text,
    program_files,
    save_program,
)
from amprewrite.ir.text import parse_graph
from tests.torch_programs import relative_error


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


def test_other_files_are_refused(tmp_path):
    assert list(program_files()) == [".pt2", ".onnx"]
    model, args = model_and_args()
    with pytest.raises(UnsupportedError, match=r"written as \.pt2, \.onnx; want a"):
        save_program(model, args, {}, tmp_path / "model.stablehlo")


# --- ONNX --------------------------------------------------------------------------


def attention_and_args():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return layer.eval(), (torch.randn(2, 5, 16),)


def test_a_program_in_float16_runs_in_onnx_runtime(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, args = attention_and_args()
    converted = amprewrite.convert(model, "fp16", args=args)
    path = tmp_path / "model.onnx"
    save_program(converted, args, {}, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = [given.name for given in session.get_inputs()]
    found = torch.from_numpy(session.run(None, {name: args[0].numpy()})[0])
    exact = model.double()(args[0].double())
    assert found.dtype == torch.float32
    assert 1e-5 < relative_error(found, exact) < 1e-3
    assert relative_error(found, converted(*args)) < 1e-3


def test_bfloat16_for_onnx_runtime_is_warned_of(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, args = model_and_args()
    path = tmp_path / "model.onnx"
    with pytest.warns(AmpWarning, match="no kernels on a CPU; .* policy='fp16'"):
        save_program(amprewrite.convert(model, args=args), args, {}, path)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):  # else warn no longer
        runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model, args = model_and_args()
    with pytest.raises(UnsupportedError, match=r"pip install (onnx )?onnxscript"):
        save_program(model, args, {}, tmp_path / "model.onnx")
