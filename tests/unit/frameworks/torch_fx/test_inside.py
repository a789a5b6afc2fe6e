from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from amprewrite.frameworks.torch_fx.inside import (
    ROUND_INSIDE,
    kernel_error,
    rounds_inside,
)
from amprewrite.ir import Op
from amprewrite.policy import OpClass, load_policy

low = partial(torch.Tensor.to, dtype=torch.bfloat16)


def error_of(function: Any, *operands: Any) -> Any:
    return kernel_error(lambda given: function(*given), operands, torch.float32, low)


def draw(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ROUND_INSIDE)
def test_every_op_of_the_table_may_be_low(name: str) -> None:
    classes = (OpClass.ALLOW, OpClass.PROMOTE)
    assert load_policy("bf16").ops[name].op_class in classes


def test_an_einsum_of_two_operands_rounds_once() -> None:
    def einsum(*operands: str) -> Op:
        return Op("e", "einsum", "aten.einsum.default", operands, ("r",))

    assert not rounds_inside(einsum("a", "b"))
    assert rounds_inside(einsum("a", "b", "c"))
    assert not rounds_inside(Op("l", "linear", "", ("a", "b"), ("r",)))


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
def test_kernels_of_the_table_round_more(function: Any, shapes: Any) -> None:
    operands = [draw(*shape) for shape in shapes]
    exact = function(*(low(operand).float() for operand in operands))
    rounding = low(exact).float() - exact
    assert error_of(function, *operands).norm() > 1.25 * rounding.norm()


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
