"""The array API's promotion against its strict implementation."""

import warnings
from itertools import product

import pytest

from amprewrite.dtypes import promote_types, result_type
from amprewrite.dtypes.systems.array_api import ArrayApiRules
from amprewrite.errors import PromotionError

xp = pytest.importorskip("array_api_strict")

NAMES = sorted(ArrayApiRules.dtypes)
NUMBERS = [True, 1, 1.0, 1j]


def ours(*operands):
    try:
        dtype, weak = result_type(*operands, system="array-api")
    except PromotionError:
        return None
    assert not weak
    return dtype


def theirs(*operands):
    try:
        dtype = xp.result_type(*operands)
    except (TypeError, ValueError):
        return None
    return str(dtype).rpartition(".")[2]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_result_type(count):
    live = {name: getattr(xp, name) for name in NAMES}
    wrong = [
        case
        for case in product([*NAMES, *NUMBERS], repeat=count)
        if ours(*case) != theirs(*(live.get(x, x) for x in case))
    ]
    assert not wrong, wrong[:10]


def test_promote_types_is_result_type_of_two():
    defined = 0
    for a, b in product(NAMES, repeat=2):
        try:
            got = promote_types(a, b, "array-api")
        except PromotionError:
            got = None
        assert got == ours(a, b)
        defined += a <= b and got is not None
    assert defined == 43  # of 91


def test_addition_gives_what_is_promised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays = {name: xp.ones((2,), dtype=getattr(xp, name)) for name in NAMES[1:]}
    for (a, x), (b, y) in product(arrays.items(), repeat=2):
        try:
            want = str((x + y).dtype).rpartition(".")[2]
        except TypeError:
            want = None
        assert ours(a, b) == want, (a, b)
