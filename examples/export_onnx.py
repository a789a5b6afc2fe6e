"""Export a converted network to ONNX, run it by ONNX Runtime, and compare the errors.

ONNX Runtime has no bfloat16 on a CPU, so that the policy is fp16. Run:
``python examples/export_onnx.py``
"""

import tempfile
from pathlib import Path

import onnxruntime
import torch
from torch import nn

import amprewrite


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a layer of a transformer and its input, of shape (2, 16, 32)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return layer.eval(), (torch.randn(2, 16, 32),)


def error(output: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative L2 error of an output."""
    return float((output.detach().double() - exact).norm() / exact.norm())


def main() -> None:
    """Convert, export, run and compare."""
    model, args = build()
    converted = amprewrite.convert(model, "fp16", args=args)
    print(converted.plan.summary())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program = torch.onnx.export(converted, args, dynamo=True, verbose=False)
        assert program is not None, "dynamo=True returns a program"
        program.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: args[0].numpy()}
        found = torch.from_numpy(session.run(None, feed)[0])
    exact = model.double()(args[0].double()).detach()
    print(f"error against float64 in torch: {error(converted(*args), exact):.1e}")
    print(f"error against float64 in ONNX Runtime: {error(found, exact):.1e}")


if __name__ == "__main__":
    main()
