"""Formats against ml_dtypes, NumPy and torch: constants, and every small value."""

import math
from functools import cache
from itertools import pairwise, product

import pytest

from amprewrite.dtypes import FORMATS, is_lossless, itemsize, saturate, survives, ulp

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

FLOATS = [name for name, f in FORMATS.items() if f.kind == "float"]


def live(name):
    """The dtype of that name; None where neither NumPy nor ml_dtypes has it."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        return None


STORED = [name for name in FORMATS if live(name) and name != "complex32"]
SMALL = [name for name in STORED if FORMATS[name].bits <= 16]


@cache
def finite_values(name):
    """Every finite value of a format of at most 16 bits, as float64."""
    bits = FORMATS[name].bits
    if name == "bool":
        return np.array([0.0, 1.0])
    if FORMATS[name].kind in ("int", "uint"):
        return np.arange(FORMATS[name].min, FORMATS[name].max + 1, dtype=np.float64)
    codes = np.arange(2**bits, dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):  # NaN among them
        values = codes.view(live(name)).astype(np.float64)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("name", FLOATS)
def test_constants_of_floats(name):
    ours, theirs = FORMATS[name], ml_dtypes.finfo(live(name))
    assert ours.max == float(theirs.max)
    assert ours.min == float(theirs.min)
    assert ours.smallest_normal == float(theirs.smallest_normal)
    assert ours.smallest_subnormal == float(theirs.smallest_subnormal)
    assert ours.bits == theirs.bits
    assert ours.mantissa_bits == theirs.nmant
    assert ours.exponent_bits == theirs.nexp
    assert ulp(name, 1.0) == max(float(theirs.eps), ours.smallest_subnormal)


@pytest.mark.parametrize("name", [n for n in STORED if "int" in n])
def test_constants_of_integers(name):
    info = ml_dtypes.iinfo(live(name))
    assert (FORMATS[name].min, FORMATS[name].max) == (int(info.min), int(info.max))


@pytest.mark.parametrize("name", STORED)
def test_itemsize(name):
    assert itemsize(name) == np.dtype(live(name)).itemsize


@pytest.mark.parametrize("name", [n for n in FLOATS if n in SMALL])
def test_values_lie_where_the_format_says(name):
    values, ours = finite_values(name), FORMATS[name]
    assert (values.min(), values.max()) == (ours.min, ours.max)
    zeros = np.signbit(values[values == 0]).tolist()
    assert (True in zeros) == ours.has_negative_zero
    assert (False in zeros) == (ours.min <= 0)


@pytest.mark.parametrize("name", [n for n in FLOATS if n in SMALL])
def test_ulp_is_the_gap_to_the_next_value(name):
    positive = np.unique(np.abs(finite_values(name))).tolist()
    for low, high in pairwise(positive):
        assert ulp(name, low) == ulp(name, -low) == high - low
    assert ulp(name, positive[-1]) == ulp(name, 2 * positive[-1])


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_ulp_is_numpys_spacing(name):
    numbers = np.random.default_rng(0).lognormal(0, 30, 2_000)
    with np.errstate(over="ignore", under="ignore"):
        rounded = numbers.astype(name)
    for x in rounded[np.isfinite(rounded)]:
        assert ulp(name, float(x)) == float(np.spacing(x))


@pytest.mark.parametrize("name", [n for n in FLOATS if n != "float64"])
def test_overflow(name):
    with np.errstate(all="ignore"):
        cast = float(np.float64(FORMATS[name].max * 8).astype(live(name)))
    kinds = {"inf": math.isinf, "nan": math.isnan, "saturate": math.isfinite}
    assert kinds[FORMATS[name].overflow](cast)


# Without the scale format: ml_dtypes rounds what is just above its least value up to
# the next one, twice as large.
@pytest.mark.parametrize("name", [n for n in FLOATS if n[-2:] not in ("64", "nu")])
def test_what_survives_is_rounded_at_most(name):
    exponents = np.random.default_rng(0).uniform(-300, 300, 3_000)
    extremes = [0.0, -0.0, math.inf, math.nan, FORMATS[name].max, FORMATS[name].min]
    numbers = [*(2.0**exponents).tolist(), *(-(1.1**exponents)).tolist(), *extremes]
    with np.errstate(all="ignore"):
        cast = np.array(numbers).astype(live(name)).astype(np.float64).tolist()
    unit = 2.0 ** -FORMATS[name].precision
    for before, after in zip(numbers, cast, strict=True):
        if not survives(name, before):
            continue
        if math.isfinite(before):
            assert abs(after - before) <= unit * abs(before), before
            assert saturate(name, before) == before
        else:
            assert after == before or (math.isnan(after) and math.isnan(before))


@pytest.mark.parametrize("a", SMALL)
def test_lossless_means_that_every_value_survives(a):
    before = finite_values(a)
    for b in STORED:
        with np.errstate(all="ignore"):
            after = before.astype(np.float32).astype(live(b))
            after = (after if "complex" in b else after.astype(np.float64)).real
        same = np.array_equal(before, after)
        signs = "int" in b or np.array_equal(np.signbit(before), np.signbit(after))
        # Only numbers count: a bool holds 0 and 1, but does not stand for them.
        expected = bool(same and signs) and (b != "bool" or a == "bool")
        if FORMATS[a].kind in ("float", "complex") and "int" in b:
            expected = False  # all fractions; holds also for formats without any
        assert is_lossless(a, b) == expected, b


def test_lossless_among_wide_formats_as_numpy_casts_safely():
    wide = [n for n in STORED if FORMATS[n].bits >= 32]
    # NumPy calls these safe, though int64 has more digits than float64.
    lossy = {(i, f) for i in ("int64", "uint64") for f in ("float64", "complex128")}
    for a, b in product(wide, repeat=2):
        safe = np.can_cast(a, b) and (a, b) not in lossy
        assert is_lossless(a, b) == safe, (a, b)


def test_torch_agrees():
    torch = pytest.importorskip("torch")
    checked = 0
    for name in FLOATS:
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        info = torch.finfo(dtype)
        assert (info.max, info.bits) == (FORMATS[name].max, FORMATS[name].bits)
        assert info.smallest_normal == FORMATS[name].smallest_normal
        checked += 1
    assert checked >= 8


def test_torch_saturates_where_jax_gives_nan():
    torch = pytest.importorskip("torch", minversion="2.13")
    large = torch.tensor(1e9).to(torch.float8_e4m3fn).item()
    assert FORMATS["float8_e4m3fn"].overflow == "nan"
    assert large == FORMATS["float8_e4m3fn"].max
