"""NumPy's promotion against NumPy itself."""

from itertools import product

import pytest

from amprewrite.dtypes import promote_types, result_type
from amprewrite.dtypes.systems.numpy import NumpyRules

np = pytest.importorskip("numpy", minversion="2.0")

NAMES = sorted(NumpyRules.dtypes)
NUMBERS = [True, 1, 1.0, 1j]


def test_promote_types():
    for a, b in product(NAMES, repeat=2):
        assert promote_types(a, b, "numpy") == np.promote_types(a, b).name, (a, b)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_result_type(count):
    live = {name: np.dtype(name) for name in NAMES}
    for case in product([*NAMES, *NUMBERS], repeat=count):
        want = np.result_type(*(live.get(x, x) for x in case)).name
        assert result_type(*case, system="numpy") == (want, False), case


def test_zero_d_arrays_and_scalars_are_strong():
    for a, b in product(NAMES, repeat=2):
        want = (np.ones(2, a) + np.ones((), b)).dtype.name
        assert result_type(a, b, system="numpy").dtype == want, (a, b)
