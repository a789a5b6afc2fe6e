"""Where the prices of a device come from."""

import warnings
from functools import partial

import pytest

from amprewrite.errors import AmpWarning
from amprewrite.passes.cost import cost_model
from amprewrite.passes.cost.cost_model import EAGER
from amprewrite.plan.hardware import Device, shipped_calibration

AVX2 = Device(framework="torch", version="1", kind="cpu", name="X", features="avx2")
priced = partial(
    cost_model.device_model, EAGER, low="bfloat16", full="float32", weighed=True
)


@pytest.fixture(autouse=True)
def by_device(monkeypatch):
    monkeypatch.delenv("AMPREWRITE_PRICES")
    cost_model._warn_unpriced.cache_clear()


def gpu(name):
    return Device(framework="torch", version="1", kind="cuda", name=name)


def test_a_calibration_counts_most(monkeypatch):
    own = shipped_calibration(AVX2)
    assert priced(gpu("NVIDIA H100 PCIe"), own).timings is not None
    monkeypatch.setenv("AMPREWRITE_PRICES", "default")
    assert priced(AVX2, own).timings is not None


def test_then_the_class_of_a_processor_and_the_sheet_of_a_gpu():
    found = priced(AVX2, None)
    assert found.timings is not None
    assert found.source.startswith("measured on ")
    assert "data sheet" in priced(gpu("NVIDIA H200"), None).source


def test_a_device_without_prices_warns_once_and_names_calibrate():
    device = gpu("NVIDIA GeForce RTX 4090")
    with pytest.warns(AmpWarning, match="no prices are known of NVIDIA GeForce"):
        assert priced(device, None) is EAGER
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert priced(device, None) is EAGER
    cost_model._warn_unpriced.cache_clear()
    with pytest.warns(AmpWarning, match="run `amprewrite calibrate`"):
        priced(device, None)


def test_it_does_not_warn_where_nothing_is_weighed_or_only_a_kind_is_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device = gpu("NVIDIA GeForce RTX 4090")
        assert priced(device, None, weighed=False) is EAGER
        assert priced(gpu("cuda"), None) is EAGER


def test_fixed_prices_are_the_default_ones(monkeypatch):
    monkeypatch.setenv("AMPREWRITE_PRICES", "default")
    assert priced(AVX2, None) is EAGER
    assert priced(gpu("NVIDIA H200"), None) is EAGER


def test_a_dtype_that_was_not_timed_has_default_prices():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert priced(AVX2, None, low="float8_e4m3fn") is EAGER
        assert priced(AVX2, None, full="float64") is EAGER
