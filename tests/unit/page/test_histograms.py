"""Exponents: ranges of formats, and the loss scale that they suggest."""

import pytest

from amprewrite.page.histograms import LOST, as_histograms, loss_scale, ranges
from amprewrite.page.model import Histogram


def gradient(**counts: int) -> Histogram:
    found = {int(key[1:].replace("_", "-")): n for key, n in counts.items()}
    return Histogram("w", "weight gradient", "m", found)


def test_ranges_are_those_of_the_formats() -> None:
    found = {r.name: (r.subnormal, r.normal, r.largest) for r in ranges()}
    assert found == {
        "float16": (-24, -14, 15),
        "bfloat16": (-133, -126, 127),
        "float8_e5m2": (-16, -14, 15),
        "float8_e4m3fn": (-9, -6, 8),
    }


def test_the_scale_keeps_small_gradients_and_the_largest_finite() -> None:
    found = loss_scale([gradient(e_30=500, e_10=499), gradient(e_4=1)])
    assert found is not None
    assert found.lost == 0.5
    assert found.least == 6, "2**-30 becomes 2**-24"
    assert found.most == 18, "almost 2**-3 becomes almost 2**15; 2**16 would overflow"
    assert found.fits


def test_outliers_do_not_set_the_scale() -> None:
    rare = int(1000 * LOST)
    found = loss_scale([gradient(e_40=rare, e_20=1000 - rare)])
    assert found is not None
    assert (found.least, found.lost) == (0, pytest.approx(LOST))
    more = loss_scale([gradient(e_40=rare + 1, e_20=999 - rare)])
    assert more is not None
    assert more.least == 16


def test_no_single_scale_fits_a_wide_spread() -> None:
    found = loss_scale([gradient(e_60=1, e10=1)])
    assert found is not None
    assert not found.fits


def test_only_gradients_count() -> None:
    assert loss_scale([Histogram("w", "weight", "", {-60: 5})]) is None
    assert loss_scale([gradient(e_3=0)]) is None


def test_anything_with_the_attributes_is_a_histogram() -> None:
    one = Histogram("w", "weight", "m", {-3: 4}, 1, 2)
    assert as_histograms([one]) == (one,)
