"""Layers that read packed weights, and pack those that are plain."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from amprewrite.errors import AmpWarning
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, packed_layer
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import (
    SUM,
    OfMatrix,
    OfWindow,
)
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    MOST_PACKS,
    PackedLayer,
    PackedWeight,
)
from tests.packing import REORDERED, pack_float32

X = torch.linspace(-1, 1, 128).reshape(2, 64)
TURNED = OfMatrix(transposed=True)
OTHER = torch.linspace(-1, 1, 128).reshape(2, 64).cos()


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_float32(monkeypatch)


def weight() -> Any:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(64, 64))


def plain_sum(x: Any, held: Any, bias: Any) -> Any:
    return torch.addmm(bias, x, held)


def summing() -> PackedLayer:
    """Return a layer of a transposed weight, with a sum."""
    return PackedLayer(plain_sum, TURNED, X.shape, SUM, torch.add)


@torch.no_grad()
def test_a_plain_weight_is_packed_and_packed_again_after_a_write() -> None:
    layer, held, bias = summing(), weight(), torch.ones(64)
    for _ in range(2):
        found = layer(X, held, bias, OTHER)
        assert type(held) is PackedWeight
        wanted = X @ held.detach() + bias + OTHER  # which unpacks it
        torch.testing.assert_close(found, wanted, **REORDERED)
        held.mul_(-2)
        layer(X, held, bias, OTHER)
    assert layer.packs == 3


@torch.no_grad()
def test_a_weight_that_cannot_be_packed_is_read_as_it_is() -> None:
    layer, held, bias = summing(), weight(), torch.ones(64)
    view = held[0]
    found = layer(X, held, bias, OTHER)
    assert type(held) is nn.Parameter
    assert torch.equal(found, torch.addmm(bias, X, held) + OTHER)
    view.zero_()
    assert torch.equal(layer(X, held, bias, OTHER), torch.addmm(bias, X, held) + OTHER)
    assert layer.packs == 0


@torch.no_grad()
def test_a_weight_that_is_read_between_all_calls_is_packed_a_few_times() -> None:
    layer, held = PackedLayer(functional.linear, OfMatrix(), X.shape), weight()
    for _ in range(MOST_PACKS + 2):
        found = layer(X, held, None)
        torch.testing.assert_close(found, X @ held.t(), **REORDERED)
    assert layer.packs == MOST_PACKS
    assert type(held) is nn.Parameter


@torch.no_grad()
def test_two_layers_share_a_packed_weight_of_one_layout() -> None:
    one, two = (PackedLayer(functional.linear, OfMatrix(), X.shape) for _ in range(2))
    held = weight()
    one(X, held, None)
    matrix = vars(held)["_amprewrite_packed"].values
    two(X, held, None)
    assert vars(held)["_amprewrite_packed"].values is matrix
    turned = PackedLayer(lambda x, w, _: x @ w, TURNED, X.shape)
    found = turned(X, held, None)
    torch.testing.assert_close(found, X @ held, **REORDERED)


@torch.no_grad()
def test_a_kernel_that_fails_later_is_told_and_done_without(monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no memory")  # of a stand-in

    monkeypatch.setattr(kernels, "packed_matrix", refuse)
    layer, held = PackedLayer(functional.linear, OfMatrix(), X.shape), weight()
    with pytest.warns(AmpWarning, match=r"\(64, 64\) and torch.float32 .* no memory"):
        found = layer(X, held, None)
    assert torch.equal(found, functional.linear(X, held))
    assert torch.equal(layer(X, held, None), found)
    assert layer.packs == packed_layer.MOST_PACKS


IMAGE = torch.linspace(-1, 1, 2 * 8 * 36).reshape(2, 8, 6, 6)
WINDOW = OfWindow(kernels.Window((1, 1), (1, 1), (1, 1), 1))


def convolution() -> tuple[PackedLayer, Any]:
    torch.manual_seed(0)
    layer = PackedLayer(WINDOW.plain_layer, WINDOW, tuple(IMAGE.shape))
    return layer, nn.Parameter(torch.randn(8, 8, 3, 3))


@torch.no_grad()
def test_a_convolution_is_packed_anew_where_other_operands_want_other_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter((True, False, False))
    monkeypatch.setattr(kernels, "same", lambda *_: next(answers))
    layer, held = convolution()
    values = held.clone()
    packs: list[int] = []
    for high in (6, 5, 5, 6, 4, 4, 6):  # asked are the second, the fifth and the last
        x = IMAGE[:, :, :high]
        found = layer(x, held, None)
        wanted = functional.conv2d(x, values, padding=1)
        torch.testing.assert_close(found, wanted, **REORDERED)
        assert type(held) is PackedWeight
        packs.append(layer.packs)
    assert packs == [1, 1, 1, 1, 2, 2, 3]
    assert next(answers, None) is None


@torch.no_grad()
def test_blocks_that_would_be_larger_are_asked_for_once(monkeypatch) -> None:
    layer, held = convolution()
    monkeypatch.setattr(packed_layer, "MOST_PADDING", -1)
    wanted = functional.conv2d(IMAGE, held, padding=1)
    assert torch.equal(layer(IMAGE, held, None), wanted)

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(kernels, "packed_window", refuse)
    assert torch.equal(layer(IMAGE, held, None), wanted)
    assert type(held) is nn.Parameter
    assert layer.packs == 0
