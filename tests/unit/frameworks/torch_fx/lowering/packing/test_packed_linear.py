"""Layers that read packed weights, and pack those that are plain."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from amprewrite.errors import AmpWarning
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, packed_linear
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Epilogue
from amprewrite.frameworks.torch_fx.lowering.packing.packed_linear import (
    MOST_PACKS,
    PackedLinear,
)
from amprewrite.frameworks.torch_fx.lowering.packing.packed_weight import PackedWeight
from tests.packing import pack_float32

X = torch.linspace(-1, 1, 128).reshape(2, 64)
OTHER = torch.linspace(-1, 1, 128).reshape(2, 64).cos()


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_float32(monkeypatch)


def weight() -> Any:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(64, 64))


def plain_sum(x: Any, held: Any, bias: Any) -> Any:
    return torch.addmm(bias, x, held)


def summing() -> PackedLinear:
    """Return a layer of a transposed weight, with a sum."""
    epilogue = Epilogue("add", sums=True)
    return PackedLinear(plain_sum, 2, True, epilogue, torch.add)


@torch.no_grad()
def test_a_plain_weight_is_packed_and_packed_again_after_a_write() -> None:
    layer, held, bias = summing(), weight(), torch.ones(64)
    for _ in range(2):
        found = layer(X, held, bias, OTHER)
        assert type(held) is PackedWeight
        wanted = X @ held.detach() + bias + OTHER  # which unpacks it
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
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
    layer, held = PackedLinear(functional.linear, 2, False), weight()
    for _ in range(MOST_PACKS + 2):
        found = layer(X, held, None)
        torch.testing.assert_close(found, X @ held.t(), rtol=1e-5, atol=1e-5)
    assert layer.packs == MOST_PACKS
    assert type(held) is nn.Parameter


@torch.no_grad()
def test_two_layers_share_a_packed_weight_of_one_layout() -> None:
    one, two = (PackedLinear(functional.linear, 2, False) for _ in range(2))
    held = weight()
    one(X, held, None)
    matrix = vars(held)["_amprewrite_packed"].matrix
    two(X, held, None)
    assert vars(held)["_amprewrite_packed"].matrix is matrix
    turned = PackedLinear(lambda x, w, _: x @ w, 2, True)
    found = turned(X, held, None)
    torch.testing.assert_close(found, X @ held, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_kernel_that_fails_later_is_told_and_done_without(monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no memory")  # of a stand-in

    monkeypatch.setattr(kernels, "packed", refuse)
    layer, held = PackedLinear(functional.linear, 2, False), weight()
    with pytest.warns(AmpWarning, match=r"\(64, 64\) and torch.float32 .* no memory"):
        found = layer(X, held, None)
    assert torch.equal(found, functional.linear(X, held))
    assert torch.equal(layer(X, held, None), found)
    assert layer.packs == packed_linear.MOST_PACKS
