"""Packed weights on any x86 CPU: kernels in float32, and a stand-in for low ones."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering import channels_last
from amprewrite.frameworks.torch_fx.lowering.packing import (
    kernels,
    pack_layers,
    packed_layer,
)
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import PackedWeight

REORDERED = {"rtol": 1e-5, "atol": 2e-5}
"""Tolerances of float32 sums in another order: 85 roundings of 2**-23, and of values of
about 2 in sums that cancel. A result rounded to 16 bits, or of another weight, is far
from it.
"""


def pack_float32(monkeypatch: pytest.MonkeyPatch, least: int = 0) -> None:
    """Pack float32 weights of ``least`` elements and more, with oneDNN's kernels.

    Those of 64 by 64 are not padded: small ones are.
    """
    if not kernels.has_kernels():
        pytest.skip("no oneDNN kernels of x86 here")
    monkeypatch.setattr(kernels, "packs", torch.float32.__eq__)
    monkeypatch.setattr(pack_layers, "LEAST_ELEMENTS", least)
    monkeypatch.setattr(packed_layer, "MOST_PADDING", 100)


def change_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all convolutions read the channels last, for no price."""
    for price in ("_CALL", "_COPY", "_INTO", "_OUT_OF", "_LEAST_INPUTS"):
        monkeypatch.setattr(channels_last, price, 0.0)
    monkeypatch.setattr(channels_last, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(channels_last, "_is_measured", lambda: True)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack bfloat16 weights for a kernel that computes in float32, and rounds once.

    So do those of CPUs with bfloat16 instructions, which this one may not have.
    """
    activations = {
        "none": lambda y: y,
        "gelu": functional.gelu,
        "hardswish": functional.hardswish,
        "leaky_relu": functional.leaky_relu,
        "sigmoid": torch.sigmoid,
        "swish": functional.silu,
        "tanh": torch.tanh,
    }

    def packed(weight: Any, *_: Any) -> Any:
        return weight.clone(memory_format=torch.contiguous_format)

    def kernel_of(layer: Any, epilogue: kernels.Epilogue) -> Any:
        def run(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
            added = None if bias is None else bias.float()
            y = layer(x.float(), weight.float(), added)
            act, scalars = activations[epilogue.name], epilogue.scalars
            y = act(y + rest[0].float() if rest else y, *scalars)
            return y.to(x.dtype)

        return run

    def kernel(epilogue: kernels.Epilogue) -> Any:
        return kernel_of(functional.linear, epilogue)

    def window_kernel(window: kernels.Window, epilogue: kernels.Epilogue) -> Any:
        stride, padding, dilation, groups = window

        def layer(x: Any, weight: Any, bias: Any) -> Any:
            place: Any = stride, padding, dilation, groups
            return functional.conv2d(x, weight, bias, *place)

        run, last = kernel_of(layer, epilogue), torch.channels_last
        return lambda *given: run(*given).contiguous(memory_format=last)

    for name in ("packs", "convolves"):
        monkeypatch.setattr(kernels, name, lambda dtype: dtype == torch.bfloat16)
    monkeypatch.setattr(pack_layers, "LEAST_ELEMENTS", 0)
    for name in ("packed_matrix", "packed_window"):
        monkeypatch.setattr(kernels, name, packed)
    monkeypatch.setattr(kernels, "plain", torch.clone)
    monkeypatch.setattr(kernels, "size", lambda matrix: matrix.nbytes)
    monkeypatch.setattr(kernels, "matrix_kernel", kernel)
    monkeypatch.setattr(kernels, "window_kernel", window_kernel)
    monkeypatch.setattr(kernels, "same", torch.equal)
    monkeypatch.setattr(packed_layer, "_trials", {})


def packed_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that are held packed."""
    return [n for n, held in model.named_parameters() if type(held) is PackedWeight]
