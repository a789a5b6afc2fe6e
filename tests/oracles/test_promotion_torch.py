"""torch's promotion against eager torch itself."""

import warnings
from itertools import product

import pytest

from amprewrite.dtypes import Operand, promote_types, result_type
from amprewrite.dtypes.systems.torch import TorchRules
from amprewrite.errors import PromotionError

torch = pytest.importorskip("torch")

NAMES = sorted(TorchRules.dtypes)
SOME = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex32", "complex64", "complex128"),
]
NUMBERS = [True, 1, 1.0, 1j]
DEFAULTS = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture(params=DEFAULTS)
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    torch.set_default_dtype(before)


def ours(*operands, **options):
    try:
        dtype, weak = result_type(*operands, system="torch", **options)
    except PromotionError:
        return None
    assert not weak
    return dtype


def theirs(function, *operands):
    try:
        result = function(*operands)
    except NotImplementedError as error:  # promoted, and no kernel: ... for 'UInt16'
        return str(error).split("'")[-2].lower()
    except RuntimeError:
        return None
    return str(getattr(result, "dtype", result)).removeprefix("torch.")


def tensors(names):
    """Pairs of an operand and its live tensor, with and without extent."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        return [
            (
                Operand(name, ndim=len(shape)),
                torch.empty(shape, dtype=getattr(torch, name)),
            )
            for name in names
            for shape in [(0,), ()]
        ]


def mismatches(function, cases, **options):
    """Mismatches of ``function``, which promotes, and how many cases there were."""
    wrong, count = [], 0
    for case in cases:
        mine, live = zip(*case, strict=True)
        got, want = ours(*mine, **options), theirs(function, *live)
        count += 1
        if got != want:
            wrong.append((mine, got, want))
    return wrong, count


def test_promote_types():
    wrong = []
    for a, b in product(NAMES, repeat=2):
        want = theirs(torch.promote_types, getattr(torch, a), getattr(torch, b))
        try:
            got = promote_types(a, b, "torch")
        except PromotionError:
            got = None
        if got != want:
            wrong.append((a, b, got, want))
    assert not wrong


def test_result_type_of_two(default_dtype):
    operands = [*tensors(NAMES), *((x, x) for x in NUMBERS)]
    cases = product(operands, repeat=2)
    wrong, count = mismatches(torch.result_type, cases, default_dtype=default_dtype)
    assert not wrong, wrong[:10]
    assert count > 5_000


def test_result_type_of_three():
    cases = product(tensors(SOME), repeat=3)
    wrong, count = mismatches(torch.addcmul, cases)
    assert not wrong, wrong[:10]
    assert count > 40_000


def test_result_type_of_an_array_and_two_numbers(default_dtype):
    operands = [x for x in tensors(SOME) if x[0].kind in ("int", "float")]
    numbers = [(x, x) for x in (1, 1.0)]
    cases = product(operands, numbers, numbers)
    wrong, count = mismatches(torch.clamp, cases, default_dtype=default_dtype)
    assert not wrong, wrong[:10]
    assert count > 80
