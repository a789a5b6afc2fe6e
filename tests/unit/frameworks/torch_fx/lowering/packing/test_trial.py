"""Kernels are tried before a program uses them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering.packing import kernels, packed_layer
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Epilogue, OfMatrix
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    PackedLayer,
    Tried,
    tried,
)
from tests.packing import pack_float32, stand_in

SHAPE = torch.Size((64, 128))
AFTER: dict[Epilogue, Callable[..., Any] | None] = {
    kernels.NONE: None,
    Epilogue("gelu", (), "none"): functional.gelu,
    kernels.SUM: torch.add,
}


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_layer, "_trials", {})


def layer(epilogue: Epilogue) -> PackedLayer:
    linear, after = functional.linear, AFTER[epilogue]
    return PackedLayer(linear, OfMatrix(), (2, 128), epilogue, after)


@pytest.mark.parametrize("epilogue", AFTER)
def test_kernels_that_compute_the_layer_are_taken(epilogue, monkeypatch) -> None:
    pack_float32(monkeypatch)
    assert tried(layer(epilogue), SHAPE, torch.float32) == Tried("")


@pytest.mark.parametrize("epilogue", AFTER)
def test_a_low_kernel_may_round_less(epilogue, monkeypatch) -> None:
    stand_in(monkeypatch)
    assert tried(layer(epilogue), SHAPE, torch.bfloat16) == Tried("")


def test_a_kernel_that_computes_something_else_is_not_taken(monkeypatch) -> None:
    stand_in(monkeypatch)
    made = layer(kernels.NONE)
    right = kernels.matrix_kernel(kernels.NONE)
    monkeypatch.setattr(
        kernels, "matrix_kernel", lambda _: lambda *given: right(*given) * 1.1
    )
    assert tried(made, SHAPE, torch.bfloat16).why.startswith("its result differs by ")
    nan = lambda *given: right(*given) * float("nan")  # noqa: E731  # one line
    monkeypatch.setattr(kernels, "matrix_kernel", lambda _: nan)
    assert tried(made, torch.Size((64, 64)), torch.bfloat16).why


@pytest.mark.parametrize("name", ["relu", "hardtanh", "hardsigmoid"])
def test_a_kernel_that_gives_numbers_for_nan_is_not_taken(name, monkeypatch) -> None:
    pack_float32(monkeypatch)
    bounds = (-1.0, 1.0) if name == "hardtanh" else ()
    run = getattr(functional, name)
    made = PackedLayer(
        functional.linear, OfMatrix(), (2, 128), Epilogue(name, bounds), run
    )
    assert tried(made, SHAPE, torch.float32).why == packed_layer.LOST


def test_a_cpu_without_the_instructions_says_so() -> None:
    if not kernels.has_kernels() or kernels.packs(torch.float16):
        pytest.skip("no oneDNN kernels of x86, or all of them")
    why = tried(layer(kernels.NONE), SHAPE, torch.float16).why
    assert "fp16 path needs the cpu support" in why
    assert "\n" not in why


def test_a_matrix_that_would_be_much_larger_stays(monkeypatch) -> None:
    pack_float32(monkeypatch)
    monkeypatch.setattr(kernels, "size", lambda _: 2 * 64 * 128 * 4)
    monkeypatch.setattr(packed_layer, "MOST_PADDING", 1 / 16)
    why = tried(layer(kernels.NONE), SHAPE, torch.float32).why
    assert why == "its blocks would take 65,536 bytes in place of 32,768"
    monkeypatch.setattr(packed_layer, "MOST_PADDING", 1)
    other = torch.Size((128, 64))
    assert tried(layer(kernels.NONE), other, torch.float32) == Tried("", 32768)
