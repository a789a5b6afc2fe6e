"""Rounding to any float format is that of a cast."""

import numpy as np
import pytest

from amprewrite.dtypes.formats import FORMATS
from amprewrite.dtypes.rounding import nearest
from amprewrite.errors import PromotionError

ml_dtypes = pytest.importorskip("ml_dtypes")

FLOATS = [
    name
    for name, found in FORMATS.items()
    if found.kind == "float" and found.name != "float8_e8m0fnu"
]


@pytest.mark.parametrize("name", FLOATS)
def test_every_number_is_rounded_as_by_a_cast(name):
    dtype = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
    rng = np.random.default_rng(0)
    # Of ten bits and less, so that ties are among them and no cast rounds twice.
    values = rng.integers(-1023, 1024, 4000) * 2.0 ** rng.integers(-40, 20, 4000)
    top = FORMATS[name].max
    values = np.append(values, [top, -top, np.inf, -np.inf, np.nan, 0.0, -0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype).astype(np.float64)
    found = nearest(values, name)
    keeps = np.isfinite(values) | (FORMATS[name].has_infinities & np.isinf(values))
    np.testing.assert_array_equal(found[keeps], cast[keeps])


def test_a_tie_goes_to_even_and_other_formats_are_refused():
    assert nearest(np.array([1 + 2**-8, 1 + 3 * 2**-8]), "bfloat16").tolist() == [
        1,
        1 + 2**-6,
    ]
    with pytest.raises(PromotionError, match="cannot round to int8 here"):
        nearest(np.ones(2), "int8")
