from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.frameworks.torch_fx.probes import kernel_rounding
from amprewrite.frameworks.torch_fx.probes.kernel_rounding import (
    SAMPLES,
    Kernels,
    kernel_error,
)
from amprewrite.ir import Op
from amprewrite.ops import op_table
from amprewrite.policy import OpClass, load_policy

low = partial(torch.Tensor.to, dtype=torch.bfloat16)


def error_of(function: Any, *operands: Any) -> Any:
    return kernel_error(lambda given: function(*given), operands, torch.float32, low)


def draw(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


ROUND_INSIDE = [name for name, its in op_table().ops.items() if its.rounds_inside]


@pytest.mark.parametrize("name", ROUND_INSIDE)
def test_every_op_of_the_table_may_be_low(name: str) -> None:
    classes = (OpClass.ALLOW, OpClass.PROMOTE)
    assert load_policy("bf16").ops[name].op_class in classes


def round_inside(op: Op, dtype: Any = torch.bfloat16) -> bool:
    return Kernels(dtype).round_inside(op, (torch.ones(1),))


def contraction(name: str) -> Op:
    return Op("c", name, "", ("a", "b"), ("r",))


def test_an_einsum_of_two_operands_rounds_once() -> None:
    def einsum(*operands: str) -> Op:
        return Op("e", "einsum", "aten.einsum.default", operands, ("r",))

    assert not round_inside(einsum("a", "b"))
    assert round_inside(einsum("a", "b", "c"))
    assert not round_inside(contraction("exp"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_says_whether_a_contraction_rounds_inside_on_this_device(
    name: str,
) -> None:
    run, shapes = SAMPLES[name]
    operands = [low(draw(*shape)) for shape in shapes]
    exact = run(*(operand.float() for operand in operands))
    rounding = (low(exact).float() - exact).norm()
    ratio = float((run(*operands).float() - exact).norm() / rounding)
    assert not 1.05 < ratio < 1.15, "too near to the bound to tell"
    assert round_inside(contraction(name)) == (ratio > 1.1)


def test_a_contraction_that_adds_in_low_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def adds_in_low(x: Any, w: Any) -> Any:
        return sum(
            (x[:, i::8] @ w[:, i::8].T for i in range(1, 8)), x[:, ::8] @ w.T[::8]
        )

    shapes = SAMPLES["linear"][1]
    monkeypatch.setattr(kernel_rounding, "SAMPLES", {"linear": (adds_in_low, shapes)})
    for dtype in (torch.bfloat16, torch.float16):
        assert round_inside(contraction("linear"), dtype)
    assert not round_inside(contraction("matmul"))


def test_a_sample_runs_once_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def counted(x: Any, w: Any) -> Any:
        runs.append(1)
        return functional.linear(x, w)

    monkeypatch.setattr(
        kernel_rounding, "SAMPLES", {"linear": (counted, ((2, 4), (2, 4)))}
    )
    kernels = Kernels(torch.bfloat16)
    for _ in range(3):
        kernels.round_inside(contraction("linear"), (torch.ones(1),))
    assert len(runs) == 2  # in full and in low


def test_a_dtype_without_the_kernel_is_not_measured() -> None:
    assert not round_inside(contraction("mv"), torch.float8_e4m3fn)
    assert not Kernels(torch.bfloat16).round_inside(contraction("mv"), ())


def test_a_kernel_that_rounds_once_has_the_error_of_its_result() -> None:
    x, w = draw(8, 16), draw(4, 16)
    error = error_of(functional.linear, x, w)
    exact = functional.linear(low(x).float(), low(w).float())
    torch.testing.assert_close(low(exact).float() - exact, error, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.addbmm, [(8, 8), (4, 8, 16), (4, 16, 8)]),
        (functional.bilinear, [(32, 16), (32, 16), (8, 16, 16)]),
        (functional.conv_transpose2d, [(2, 16, 8, 8), (16, 8, 3, 3)]),
        (partial(torch.einsum, "ij,jk,kl->il"), [(8, 8)] * 3),
    ],
)
def test_the_error_of_an_op_of_the_table_is_that_of_the_kernel_of_this_device(
    function: Any, shapes: Any
) -> None:
    """How often it rounds depends on the instructions; less than once it cannot."""
    operands = [draw(*shape) for shape in shapes]
    exact = function(*(low(operand).float() for operand in operands))
    made = function(*map(low, operands)).float()
    error = error_of(function, *operands)
    torch.testing.assert_close(error, made - exact, atol=1e-5, rtol=0)
    rounding = low(exact).float() - exact
    assert error.norm() >= (1 - 1e-3) * rounding.norm()


def test_what_passes_between_composed_products_is_rounded() -> None:
    def product(a: Any, b: Any, c: Any) -> Any:
        return (a @ b) @ c

    operands = [draw(8, 8) for _ in range(3)]
    exact = product(*(low(operand).float() for operand in operands))
    rounding = low(exact).float() - exact
    assert error_of(product, *operands).norm() > 1.1 * rounding.norm()


def test_results_keep_their_structure_and_what_is_no_float_passes() -> None:
    def function(x: Any, index: Any) -> Any:
        assert index.dtype == torch.int64
        return [x * x, (index, 3)]

    error, (index, number) = error_of(function, draw(4), torch.arange(4))
    assert error.abs().max() > 0
    assert (index.tolist(), number) == ([0, 1, 2, 3], 3)


def test_what_is_not_finite_in_full_has_no_error() -> None:
    x = torch.tensor([1.0, float("inf"), -1.0])
    error = error_of(torch.log, x)
    assert error.tolist() == [0.0, 0.0, 0.0]


def test_an_op_that_draws_is_not_measured_and_the_random_state_is_kept() -> None:
    torch.manual_seed(0)
    assert error_of(lambda x: functional.dropout(x, 0.5), draw(8)) is None
    drawn = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(4), drawn)
