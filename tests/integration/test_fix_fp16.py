"""Models that float16 does not suit come within their target by few full ops."""

from functools import partial

import pytest

for library in ("torch", "transformers", "jax", "equinox"):
    pytest.importorskip(library)

from amprewrite.errors import AmpWarning
from benchmarks import fix_fp16, fix_fp16_models


@pytest.mark.slow  # three conversions are verified op by op
def test_a_recurrent_network_keeps_the_projection_of_its_inputs_alone(monkeypatch):
    short = partial(fix_fp16_models.gru, steps=3)
    monkeypatch.setitem(fix_fp16_models.CASES, "gru", short)
    with pytest.warns(AmpWarning, match="not finite in float16"):
        row = fix_fp16.measure("gru")
    assert row["error before"] == "inf"
    assert "reads 12 values that are not finite" in row["blamed"][0]
    assert row["kept full by rules"] == ["linear"]
    assert fix_fp16.is_within(row)
    assert row["error after"] == pytest.approx(row["error measured by fix"], rel=1e-3)
    assert row["full by the rules"] <= 3, "no step is full beside the projection"
