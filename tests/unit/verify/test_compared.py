"""The numbers of a result, computed in blocks, are those of the whole."""

from math import inf, nan

import numpy as np
import pytest

from amprewrite.measure.runs import SIZE, OpSample
from amprewrite.verify.own_errors import Compared, compared

RANDOM = np.random.default_rng(0)


def drawn(scale):
    return 1e3 * RANDOM.standard_normal(SIZE + 5) * scale


def plain(reference, actual, alone, same, normal):
    """The numbers by their definitions, on whole arrays."""
    kept = np.isfinite(reference)
    both = np.isfinite(alone) & np.isfinite(same)
    r, a, o, s = reference[kept], actual[kept], alone[kept], same[both]

    def distance(found):
        return np.linalg.norm(found - r) if np.isfinite(found).all() else inf

    return Compared(
        size=float(np.linalg.norm(r)),
        accumulated=float(distance(a)),
        own=float(distance(o)),
        same=float(np.linalg.norm(s)),
        kernel=float(np.linalg.norm(alone[both] - s)),
        known=s.size,
        largest=float(abs(r).max()),
        finite=r.size,
        lost=int(np.count_nonzero(~np.isfinite(a))),
        small=int(np.count_nonzero((abs(a) < normal) & (r != 0))),
    )


@pytest.mark.parametrize("role", ["none", "reference", "actual", "alone", "same"])
@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_numbers_are_those_of_whole_arrays(role, value):
    roles = ("reference", "actual", "alone", "same")
    held = {name: drawn(1.0) for name in roles}
    held["reference"][7] = held["actual"][7:9] = 0.0
    if role != "none":
        held[role][[3, SIZE + 2]] = value
    sample = OpSample(
        "op", *((held[n],) for n in roles[:3]), exact=False, same=(held["same"],)
    )
    (found,) = compared(sample, [1.0])
    wanted = plain(*(held[n] for n in roles), normal=1.0)
    for name in Compared.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name)), name


def test_large_and_small_numbers_have_norms():
    for scale in (1e200, 1e-300):
        arrays = np.full(4, scale), np.full(4, 3 * scale)
        sample = OpSample("op", arrays[:1], arrays[1:], arrays[1:], exact=False)
        (found,) = compared(sample, [0.0])
        assert found.size == pytest.approx(2 * scale)
        assert found.own == found.accumulated == pytest.approx(4 * scale)


def test_nothing_has_no_numbers():
    empty = (np.zeros(0),)
    sample = OpSample("op", empty, empty, empty, exact=True)
    assert compared(sample, [1.0]) == [
        Compared(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0, 0, 0)
    ]
