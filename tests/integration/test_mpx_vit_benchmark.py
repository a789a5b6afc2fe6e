"""The benchmark of mpx's vision transformer: its variants, on a tiny shape."""

import math
from typing import Any

import pytest

pytest.importorskip("equinox")
pytest.importorskip("mpx")
pytest.importorskip("optax")
pytest.importorskip("sklearn")

from benchmarks.mpx_vit import SIZES, VARIANTS, kept_bytes, measure

TINY = SIZES["tiny"]


def test_bytes_kept_fall_with_precision_and_with_recomputation() -> None:
    whole = kept_bytes(VARIANTS["float32"], TINY)
    assert kept_bytes(VARIANTS["amprewrite bf16"], TINY) <= 0.70 * whole
    assert kept_bytes(VARIANTS["mpx bf16"], TINY) <= 0.70 * whole
    assert kept_bytes(VARIANTS["amprewrite bf16, recompute"], TINY) <= 0.30 * whole


@pytest.mark.slow
def test_a_variant_is_measured_whole() -> None:
    tables: list[dict[str, Any]] = []
    names = ["mpx fp16", "amprewrite bf16, recompute"]
    measure(TINY, names, 0, tables.append)
    assert [list(table["rows"]) for table in tables] == [names[:1], names]
    assert tables[-1]["limit in bytes"] > 0
    for row in tables[-1]["rows"].values():
        assert all(math.isfinite(figure) for figure in row.values())
        assert 0 <= row["accuracy"] <= 1
        assert row["largest batch"] % TINY.granule == 0
