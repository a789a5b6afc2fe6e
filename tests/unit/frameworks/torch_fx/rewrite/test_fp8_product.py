"""Products of 8 bits: torch's kernel on the CPU, and the contract of that of CUDA."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import operators
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import (
    Rounded,
    check_device,
    product,
)

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
SHAPES = [(1, 1, 1), (5, 7, 3), (16, 32, 48), (17, 33, 15), (4, 0, 3), (0, 4, 3)]


def matrices(m: int, k: int, n: int) -> Any:
    torch.manual_seed(0)
    return torch.randn(m, k) * 1e-3, torch.randn(n, k) * 50


def by_hand(x: Any, w: Any, names: Any, scaling: Any) -> Any:
    left, right = (
        quantise_scaled(t, name, scaling) for t, name in zip((x, w), names, strict=True)
    )
    return left @ right.t()


@pytest.mark.parametrize("scaling", ["none", "current"])
@pytest.mark.parametrize("names", [(E4M3, E4M3), (E5M2, E4M3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_product_of_the_rounded_numbers(shape, names, scaling):
    x, w = matrices(*shape)
    left, right = (Rounded(t, n, scaling) for t, n in zip((x, w), names, strict=True))
    assert [t.held.dtype for t in (left, right)] == [getattr(torch, n) for n in names]
    found = product(left, right)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, by_hand(x, w, names, scaling), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_of_cuda_is_called_as_it_wants(monkeypatch, shape):
    """The checks of ``_scaled_mm_out_cuda``, exactly."""
    calls = []

    def kernel(a, b, scale_a, scale_b, *, out_dtype, use_fast_accum):
        assert (a.dtype, b.dtype) == (torch.float8_e5m2, torch.float8_e4m3fn)
        assert a.stride() == (a.shape[1], 1)  # row-major
        assert b.stride() == (1, b.shape[0])  # column-major
        assert a.shape[1] == b.shape[0]
        assert not a.shape[1] % 16
        assert not b.shape[1] % 16
        for scale in (scale_a, scale_b):
            assert scale.dtype == torch.float32
            assert scale.numel() == 1
        assert out_dtype == torch.float32
        assert use_fast_accum is False
        calls.append(a.shape)
        return (a.float() @ b.float()) * scale_a * scale_b

    monkeypatch.setattr(operators, "_scaled_mm", kernel)
    x, w = matrices(*shape)
    found = product(Rounded(x, E5M2, "current"), Rounded(w, E4M3, "current"))
    wanted = by_hand(x, w, (E5M2, E4M3), "current")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(calls) == (0 not in shape)


def test_a_transposed_matrix_has_the_same_numbers():
    x, _ = matrices(5, 7, 3)
    rounded = Rounded(x, E4M3, "current")
    turned = rounded.transposed()
    assert turned.held.is_contiguous()
    assert torch.equal(turned.held.float(), rounded.held.float().t())
    assert torch.equal(turned.inverse, rounded.inverse)


@pytest.mark.parametrize(("capability", "refused"), [((8, 6), True), ((8, 9), False)])
def test_old_devices_are_refused(monkeypatch, capability, *, refused):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    if not refused:
        check_device(torch.device("cuda:0"))
        return
    with pytest.raises(UnsupportedError, match=r"cuda:0 has none; want a CUDA .*8\.9"):
        check_device(torch.device("cuda:0"))
