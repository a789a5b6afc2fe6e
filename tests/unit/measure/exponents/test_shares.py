"""Shares that a format loses, against casts of NumPy and by hand."""

import numpy as np
import pytest

from amprewrite.errors import ArgumentError, PromotionError
from amprewrite.measure.exponents.counting import exponents_of
from amprewrite.measure.exponents.rows import range_of, shares_of


@pytest.mark.parametrize(
    "name",
    ["float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3"],
)
def test_shares_are_those_of_a_cast(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    # 1.25 * 2**e: no ties, and none between the largest number and the power above.
    values = 1.25 * 2.0 ** rng.integers(-160, 140, 5000)
    dtype = (
        np.float16 if name == "float16" else np.dtype(getattr(ml_dtypes, name, name))
    )
    with np.errstate(over="ignore"):
        cast = values.astype(dtype).astype(np.float64)
    finfo = ml_dtypes.finfo(dtype)
    zero = cast == 0
    over = ~np.isfinite(cast)
    small = ~zero & (values < float(finfo.smallest_normal))
    found = exponents_of(values, "x", "weight").share_below(name)
    assert found == pytest.approx((zero.mean(), small.mean(), over.mean()), abs=1e-12)
    assert found.inside == pytest.approx(1 - (zero | small | over).mean())


def test_a_scale_moves_the_shares():
    counts = {-26: 2, -25: 1, -24: 1, -14: 4, 15: 1, 16: 1}
    assert shares_of(counts, "float16") == (0.2, 0.2, 0.1)
    assert shares_of(counts, "float16", 2.0) == (0.0, 0.4, 0.2)
    assert shares_of(counts, "float16", 2.0**10) == (0.0, 0.3, 0.2)
    assert shares_of({}, "float16") == (0.0, 0.0, 0.0)


def test_ranges_reach_from_half_the_smallest_number_to_the_largest():
    assert range_of("float16") == (-25, -14, 15)
    assert range_of("float64") == (-1075, -1022, 1023)
    assert range_of("float8_e4m3fn") == (-10, -6, 8)


def test_what_is_no_scale_or_format_is_refused():
    with pytest.raises(ArgumentError, match=r"scale is 3\.0; want a power of two"):
        shares_of({0: 1}, "float16", 3.0)
    with pytest.raises(ArgumentError, match="int8 has no exponents"):
        range_of("int8")
    with pytest.raises(PromotionError, match="did you mean 'float16'"):
        range_of("float17")
