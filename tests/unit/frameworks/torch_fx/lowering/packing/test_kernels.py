"""Kernels of packed weights: where they are, and what they compute."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Epilogue
from tests.packing import REORDERED

X = torch.linspace(-2, 2, 5 * 48).reshape(5, 48)
WEIGHT = torch.linspace(-1, 1, 64 * 48).reshape(64, 48).sin()
BIAS = torch.linspace(-1, 1, 64)

needs_kernels = pytest.mark.skipif(
    not kernels.has_kernels(), reason="no oneDNN kernels of x86"
)


@needs_kernels
@pytest.mark.parametrize(
    ("epilogue", "after"),
    [
        (kernels.NONE, lambda y: y),
        (Epilogue("relu"), functional.relu),
        (Epilogue("sigmoid"), torch.sigmoid),
        (Epilogue("tanh"), torch.tanh),
        (Epilogue("swish"), functional.silu),
        (Epilogue("hardswish"), functional.hardswish),
        (Epilogue("hardsigmoid"), functional.hardsigmoid),
        (Epilogue("gelu", (), "none"), functional.gelu),
        (
            Epilogue("gelu", (), "tanh"),
            lambda y: functional.gelu(y, approximate="tanh"),
        ),
        (Epilogue("leaky_relu", (0.2,)), lambda y: functional.leaky_relu(y, 0.2)),
        (
            Epilogue("hardtanh", (-0.5, 2.0)),
            lambda y: functional.hardtanh(y, -0.5, 2.0),
        ),
        (kernels.SUM, lambda y: y + 3 * X @ WEIGHT.T),
    ],
)
def test_a_kernel_computes_the_layer_and_its_epilogue(epilogue, after) -> None:
    matrix = kernels.packed_matrix(WEIGHT, 5)
    rest = [3 * X @ WEIGHT.T] if epilogue.sums else []
    found = kernels.matrix_kernel(epilogue)(X, matrix, BIAS, *rest)
    wanted = after(functional.linear(X, WEIGHT, BIAS))
    torch.testing.assert_close(found, wanted, **REORDERED)
    assert kernels.size(matrix) >= WEIGHT.nbytes
    assert torch.equal(kernels.plain(matrix), WEIGHT)


@needs_kernels
@pytest.mark.parametrize("shape", [(48,), (0, 48), (1, 48), (2, 3, 48)])
def test_operands_have_any_rank_and_number_of_rows(shape) -> None:
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    found = kernels.matrix_kernel(kernels.NONE)(
        x, kernels.packed_matrix(WEIGHT, 16), None
    )
    torch.testing.assert_close(found, x @ WEIGHT.T, **REORDERED)


IMAGE = torch.linspace(-2, 2, 2 * 8 * 54).reshape(2, 8, 9, 6).cos()
WINDOW = kernels.Window((2, 1), (1, 0), (1, 2), 2)
FILTER = torch.linspace(-1, 1, 16 * 4 * 9).reshape(16, 4, 3, 3).sin()
OTHER = torch.linspace(-9, 9, 2 * 16 * 5 * 2).reshape(2, 16, 5, 2)


@needs_kernels
@pytest.mark.parametrize(
    ("epilogue", "after"),
    [
        (kernels.NONE, lambda y: y),
        (
            Epilogue("gelu", (), "tanh"),
            lambda y: functional.gelu(y, approximate="tanh"),
        ),
        (Epilogue("hardtanh", (0.0, 6.0)), functional.relu6),
        (kernels.SUM, lambda y: y + OTHER),
        (Epilogue("relu", sums=True), lambda y: (y + OTHER).relu()),
    ],
)
def test_a_kernel_convolves_and_does_its_epilogue(epilogue, after) -> None:
    packed = kernels.packed_window(FILTER, WINDOW, IMAGE.shape)
    rest = [OTHER] if epilogue.sums else []
    found = kernels.window_kernel(WINDOW, epilogue)(IMAGE, packed, BIAS[:16], *rest)
    wanted = after(functional.conv2d(IMAGE, FILTER, BIAS[:16], *WINDOW))
    torch.testing.assert_close(found, wanted, **REORDERED)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(kernels.plain(packed), FILTER)


@needs_kernels
def test_layouts_are_compared_by_their_memory() -> None:
    shape = IMAGE.shape
    one, same = (kernels.packed_window(FILTER, WINDOW, shape) for _ in range(2))
    assert kernels.same(one, same)
    other = kernels.packed_window(FILTER.flip(2), WINDOW, shape)  # in another order
    assert not kernels.same(one, other)
    assert not kernels.same(one, kernels.packed_matrix(WEIGHT, 5))


def test_float32_is_packed_for_convolutions_and_low_dtypes_with_instructions() -> None:
    assert not kernels.packs(torch.float32)
    assert not kernels.packs(torch.float64)
    assert not kernels.convolves(torch.float64)
    assert kernels.convolves(torch.float32) is kernels.has_kernels()
    if "avx512" not in torch.backends.cpu.get_cpu_capability().lower():
        assert not kernels.packs(torch.float16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_kernels_sum_in_float32(dtype) -> None:
    if not kernels.packs(dtype):
        pytest.skip(f"this CPU has no instructions for {dtype}")
    x, weight = X.to(dtype), WEIGHT.to(dtype)
    wanted = functional.gelu(x.double() @ weight.double().T)
    matrix = kernels.packed_matrix(weight, 5)
    found = kernels.matrix_kernel(Epilogue("gelu", (), "none"))(x, matrix, None)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=1e-4)
    assert torch.equal(kernels.plain(matrix), weight)
