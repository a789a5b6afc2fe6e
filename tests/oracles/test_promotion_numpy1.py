"""NumPy 1's promotion against its documented algorithm on the live primitives.

NumPy 2 still has what NumPy 1 built on: ``min_scalar_type`` and ``promote_types``.
"""

from functools import reduce
from itertools import product

import pytest

from amprewrite.dtypes import Operand, promote_types, result_type
from amprewrite.dtypes.systems.numpy import Numpy1Rules, least_of
from amprewrite.errors import PromotionError

np = pytest.importorskip("numpy")

NAMES = sorted(Numpy1Rules.dtypes)
INTS = [
    *(
        s * 2**n + d
        for n in (7, 8, 15, 16, 31, 32, 63, 64)
        for s in (1, -1)
        for d in (-1, 0, 1)
    ),
    0,
    1,
    -1,
    300,
]
FLOATS = [0.0, -0.0, 1.5, 64999.0, 65000.0, -65000.0, 65504.0, 65001.0, 3.39e38]
FLOATS += [3.4e38, -3.4e38, 3.402e38, 1e39, 1e308, float("inf"), float("nan")]
COMPLEX = [1j, 3.39e38 + 1j, 3.4e38j, 1e300 + 0j, complex("inf"), complex("nan")]
NUMBERS = [True, False, *INTS, *FLOATS, *COMPLEX]


def zero_d():
    """Yield (operand, scalar of NumPy) for every dtype and every value it holds."""
    for name, value in product(NAMES, NUMBERS):
        try:
            operand = Operand(name, ndim=0, value=value)
        except PromotionError:
            continue
        yield operand, np.dtype(name).type(value)


ARRAYS = [(name, np.ones(2, name)) for name in NAMES]
SCALARS = list(zero_d())
PYTHON = [(x, np.asarray(x)) for x in NUMBERS]


def least(scalar):
    """Return what the scalar counts as, and whether a signed dtype does as well."""
    found = np.min_scalar_type(scalar)
    small = found.kind == "u" and int(scalar) <= np.iinfo(found).max // 2
    return found, small


def join(a, b):
    (first, small), (second, also_small) = a, b
    if small and second.kind not in ("b", "u"):
        first = np.dtype(first.name[1:])
    if also_small and first.kind not in ("b", "u"):
        second = np.dtype(second.name[1:])
    return np.promote_types(first, second), small and also_small


def oracle(*live):
    """Follow the Notes of numpy.result_type; None for an object."""
    if any(x.dtype == object for x in live):
        return None
    rank = dict(zip("biufc", (0, 1, 1, 2, 2), strict=True))
    ranks = [[rank[x.dtype.kind] for x in live if bool(x.ndim) == n] for n in (0, 1)]
    if not all(ranks) or max(ranks[0]) > max(ranks[1]):
        return np.result_type(*(x.dtype for x in live)).name
    counted = [(x.dtype, False) if x.ndim else least(x) for x in live]
    return reduce(join, counted)[0].name


def ours(*operands):
    try:
        return result_type(*operands, system="numpy1").dtype
    except PromotionError:
        return None


def agree(*cases):
    operands, live = zip(*cases, strict=True)
    assert ours(*operands) == oracle(*live), operands


def test_the_least_dtype():
    for operand, scalar in SCALARS:
        assert operand.value is not None
        want = np.min_scalar_type(scalar).name
        assert least_of(operand.dtype, operand.value).dtype == want, operand


def test_promote_types():
    for a, b in product(NAMES, repeat=2):
        assert promote_types(a, b, "numpy1") == np.promote_types(a, b).name, (a, b)


def test_one_and_two_operands():
    every = [*ARRAYS, *SCALARS, *PYTHON]
    for case in every:
        agree(case)
    for array, other in product(ARRAYS, every):
        agree(array, other)
        agree(other, array)


def test_scalars_alone():
    for pair in product([*SCALARS[::3], *PYTHON], PYTHON):
        agree(*pair)


def test_three_operands():
    some = [*PYTHON[::3], *SCALARS[::12]]
    for case in product(ARRAYS, some, some[::2]):
        agree(*case)
        agree(*case[::-1])
    for case in product(ARRAYS, ARRAYS, some[::3]):
        agree(*case)


def test_an_unknown_value_is_every_value():
    """Where every value gives one dtype that is the answer, else there is none."""
    for (name, array), dtype in product(ARRAYS, NAMES):
        values = [scalar for operand, scalar in SCALARS if operand.dtype == dtype]
        found = {oracle(array, scalar) for scalar in values}
        want = found.pop() if len(found) == 1 else None
        assert ours(name, Operand(dtype, ndim=0)) == want, (name, dtype)
