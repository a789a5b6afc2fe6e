import pytest

from amprewrite.ir import Op
from amprewrite.ir.factors import factor_indices


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
