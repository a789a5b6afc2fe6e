"""Seconds that were measured become bytes that could be moved meanwhile."""

from dataclasses import replace

import pytest

from amprewrite.passes.cost.cost_model import (
    COMPILED,
    EAGER,
    MARGIN,
    CostModel,
    measured_model,
)
from amprewrite.plan.hardware import Calibration
from tests.calibrations import DEVICE, calibration, slow_below


def model_of(
    found: Calibration, low: str = "bfloat16", base: CostModel = EAGER
) -> CostModel:
    model = measured_model(base, found, low, "float32")
    assert model is not None
    return model


def test_prices_are_bytes_at_the_bandwidth_of_casts() -> None:
    model = model_of(calibration())
    assert (model.target, model.launch) == ("eager", 100)
    assert model.mac_bytes == pytest.approx(1.0)
    assert model.speedup == pytest.approx(4 / MARGIN)
    assert model.source == f"measured on {DEVICE}"
    assert model.timings is not None
    assert model.timings.saved == 2
    assert {p.macs for p in model.timings.points["product"]} == {
        side**3 for side in (8, 16, 32, 64, 128, 256)
    }


def test_low_is_taken_as_slower_than_it_was_by_a_margin() -> None:
    equal = model_of(calibration(bfloat16=lambda _: 1.0))
    assert equal.timings is not None
    points = equal.timings.points["product"]
    assert all(p.low == pytest.approx(p.full * MARGIN) for p in points)


def test_a_compiler_starts_no_casts() -> None:
    model = model_of(calibration(), base=COMPILED)
    assert (model.target, model.launch, model.fused) == ("compiled", 0, COMPILED.fused)


def test_every_low_dtype_has_its_own_times() -> None:
    found = calibration(float16=slow_below(10**9))
    assert model_of(found, "bfloat16").speedup == pytest.approx(4 / MARGIN)
    assert model_of(found, "float16").speedup == pytest.approx(0.25 / MARGIN)


@pytest.mark.parametrize(("ratio", "dearer"), [(0.5, 0.0), (1.0, 2.0), (2.0, 6.0)])
def test_an_element_costs_by_its_time(ratio: float, dearer: float) -> None:
    """Of 4 bytes full, 2 low: what takes as long low as full costs 2 bytes more."""
    model = model_of(calibration(elementwise=ratio / MARGIN))
    assert model.timings is not None
    assert model.timings.elementwise["add"] == pytest.approx(dearer)


@pytest.mark.parametrize(
    ("low", "full"), [("float8_e4m3fn", "float32"), ("bfloat16", "float64")]
)
def test_what_was_not_measured_has_no_prices(low: str, full: str) -> None:
    assert measured_model(EAGER, calibration(), low, full) is None


def test_without_products_there_are_no_prices() -> None:
    found = replace(calibration(), contractions=())
    assert measured_model(EAGER, found, "bfloat16", "float32") is None
