"""Layouts of packed weights: there and back, and for which operands they are."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import (
    NONE,
    Layout,
    OfMatrix,
    OfWindow,
    Window,
)
from tests.packing import REORDERED

LAYOUTS: dict[Layout, tuple[int, ...]] = {
    OfMatrix(): (64, 48),
    OfMatrix(transposed=True): (48, 64),
    OfWindow(Window((1, 1), (1, 1), (1, 1), 1)): (24, 8, 3, 3),
    OfWindow(Window((2, 1), (0, 2), (1, 3), 1)): (17, 5, 3, 1),
    OfWindow(Window((1, 1), (1, 1), (1, 1), 16)): (16, 1, 3, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_packed_weight_gives_its_bits_back_and_runs_as_the_plain_one(layout) -> None:
    if not kernels.has_kernels():
        pytest.skip("no oneDNN kernels of x86 here")
    shape = LAYOUTS[layout]
    weight = torch.arange(torch.Size(shape).numel()).sin().view(shape)
    given = layout.example(shape)
    x, bias = torch.arange(torch.Size(given).numel()).cos().view(given), None
    packed = layout.packed(weight, given)
    assert torch.equal(layout.plain(packed), weight)
    assert layout.plain(packed).stride() == weight.stride()
    wanted = layout.plain_layer(x, weight, bias)
    found = layout.kernel(NONE)(x, packed, bias)
    torch.testing.assert_close(found, wanted, **REORDERED)
    assert layout.rank == weight.dim()
    assert wanted.shape[1] == layout.outputs(shape)
    assert layout.suits(packed, given)


def test_the_layout_of_a_convolution_is_for_one_shape(monkeypatch) -> None:
    if not kernels.has_kernels():
        pytest.skip("no oneDNN kernels of x86 here")
    window = Window((1, 1), (1, 1), (1, 1), 1)
    layout, weight = OfWindow(window), torch.randn(8, 8, 3, 3)
    packed = layout.packed(weight, (1, 8, 6, 6))
    assert not layout.is_for_all
    assert OfMatrix().is_for_all
    asked: list[tuple[int, ...]] = []

    def other(weight: Any, _: Window, shape: tuple[int, ...]) -> Any:
        asked.append(shape)
        return kernels.packed_matrix(weight.view(8, 72), 1)  # other blocks

    monkeypatch.setattr(kernels, "packed_window", other)
    assert not layout.suits(packed, (1, 8, 9, 9))
    assert asked == [(1, 8, 9, 9)]
