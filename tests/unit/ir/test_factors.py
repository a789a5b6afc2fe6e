import pytest

from amprewrite.ir import Op
from amprewrite.ir.graph import addend_index, factor_indices, linear_factors


@pytest.mark.parametrize(
    ("canonical", "count", "factors"),
    [
        ("linear", 3, (0, 1)),
        ("matmul", 2, (0, 1)),
        ("conv", 3, (0, 1)),
        ("addmm", 3, (1, 2)),
        ("baddbmm", 3, (1, 2)),
        ("scaled_dot_product_attention", 4, (0, 1, 2)),
        ("einsum", 2, (0, 1)),
        ("einsum", 3, ()),
        ("lstm", 5, ()),
        ("matmul", 1, ()),
        ("add", 2, ()),
    ],
)
def test_factors(canonical, count, factors):
    op = Op("a", canonical, canonical, tuple("xyzuv"[:count]), ("r",))
    assert factor_indices(op) == factors


@pytest.mark.parametrize(
    ("canonical", "operands", "factors"),
    [
        ("linear", "xwb", ["x", "w"]),
        ("addmm", "bxw", ["x", "w"]),
        ("conv", "xwb", ["x", "w"]),
        ("matmul", "xx", []),
        ("addmm", "xxw", ["w"]),
        ("scaled_dot_product_attention", "qkv", []),
        ("mul", "xy", []),
    ],
)
def test_factors_in_which_an_op_is_linear(canonical, operands, factors):
    op = Op("a", canonical, canonical, tuple(operands), ("r",))
    assert linear_factors(op) == factors


@pytest.mark.parametrize(
    ("canonical", "count", "addend"),
    [
        ("linear", 3, 2),
        ("linear", 2, None),
        ("conv", 3, 2),
        ("conv_transpose", 3, 2),
        ("addmm", 3, 0),
        ("addmv", 3, 0),
        ("scaled_dot_product_attention", 4, None),
        ("matmul", 2, None),
        ("add", 2, None),
    ],
)
def test_the_addend_of_a_contraction(canonical, count, addend):
    op = Op("a", canonical, canonical, tuple("xyzu"[:count]), ("r",))
    assert addend_index(op) == addend
