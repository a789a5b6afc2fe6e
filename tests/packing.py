"""Packed weights on any x86 CPU: kernels in float32, and a stand-in for low ones."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering.packing import kernels, pack_linears, trial
from amprewrite.frameworks.torch_fx.lowering.packing.packed_weight import PackedWeight


def pack_float32(monkeypatch: pytest.MonkeyPatch, least: int = 0) -> None:
    """Pack float32 weights of ``least`` elements and more, with oneDNN's kernels.

    Those of 64 by 64 are not padded: small ones are.
    """
    if not kernels.has_kernels():
        pytest.skip("no oneDNN kernels of x86 here")
    monkeypatch.setattr(kernels, "packs", torch.float32.__eq__)
    monkeypatch.setattr(pack_linears, "LEAST_ELEMENTS", least)
    monkeypatch.setattr(trial, "MOST_PADDING", 100)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack bfloat16 weights for a kernel that computes in float32, and rounds once.

    So do those of CPUs with bfloat16 instructions, which this one may not have.
    """
    activations = {
        "none": lambda y: y,
        "gelu": functional.gelu,
        "relu": functional.relu,
    }

    def kernel(epilogue: kernels.Epilogue) -> Any:
        def run(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
            added = None if bias is None else bias.float()
            y = functional.linear(x.float(), weight.float(), added)
            y = y + rest[0].float() if rest else activations[epilogue.name](y)
            return y.to(x.dtype)

        return run

    monkeypatch.setattr(kernels, "packs", torch.bfloat16.__eq__)
    monkeypatch.setattr(pack_linears, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(kernels, "packed", lambda weight, _: weight.clone())
    monkeypatch.setattr(kernels, "plain", torch.clone)
    monkeypatch.setattr(kernels, "size", lambda matrix: matrix.nbytes)
    monkeypatch.setattr(kernels, "kernel", kernel)
    monkeypatch.setattr(trial, "_known", {})


def packed_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that are held packed."""
    return [n for n, held in model.named_parameters() if type(held) is PackedWeight]
