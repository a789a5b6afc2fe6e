"""Kernels of packed weights: where they are, and what they compute."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.frameworks.torch_fx.lowering.packing import kernels
from amprewrite.frameworks.torch_fx.lowering.packing.kernels import Epilogue

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
        (Epilogue("add", sums=True), lambda y: y + 3 * X @ WEIGHT.T),
    ],
)
def test_a_kernel_computes_the_layer_and_its_epilogue(epilogue, after) -> None:
    matrix = kernels.packed(WEIGHT, 5)
    rest = [3 * X @ WEIGHT.T] if epilogue.sums else []
    found = kernels.kernel(epilogue)(X, matrix, BIAS, *rest)
    wanted = after(functional.linear(X, WEIGHT, BIAS))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)
    assert kernels.size(matrix) >= WEIGHT.nbytes
    assert torch.equal(kernels.plain(matrix), WEIGHT)


@needs_kernels
@pytest.mark.parametrize("shape", [(48,), (0, 48), (1, 48), (2, 3, 48)])
def test_operands_have_any_rank_and_number_of_rows(shape) -> None:
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    found = kernels.kernel(kernels.NONE)(x, kernels.packed(WEIGHT, 16), None)
    torch.testing.assert_close(found, x @ WEIGHT.T, rtol=1e-5, atol=1e-5)


def test_float32_is_packed_nowhere_and_low_dtypes_where_there_are_instructions() -> (
    None
):
    assert not kernels.packs(torch.float32)
    assert not kernels.packs(torch.float64)
    if "avx512" not in torch.backends.cpu.get_cpu_capability().lower():
        assert not kernels.packs(torch.float16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_kernels_sum_in_float32(dtype) -> None:
    if not kernels.packs(dtype):
        pytest.skip(f"this CPU has no instructions for {dtype}")
    x, weight = X.to(dtype), WEIGHT.to(dtype)
    wanted = functional.gelu(x.double() @ weight.double().T)
    matrix = kernels.packed(weight, 5)
    found = kernels.kernel(Epilogue("gelu", (), "none"))(x, matrix, None)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=1e-4)
    assert torch.equal(kernels.plain(matrix), weight)
