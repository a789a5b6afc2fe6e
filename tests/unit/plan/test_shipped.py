"""Timings of classes of processors that are part of the package."""

from dataclasses import replace
from importlib.resources import files

import pytest

from amprewrite.plan.hardware import (
    CLASSES,
    FULL,
    Device,
    class_of,
    prices_are_fixed,
    shipped_calibration,
)

AVX2 = Device(
    framework="torch", version="1", kind="cpu", name="X", features="avx2, 3 threads"
)


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ("avx2, 1 threads", "avx2"),
        ("avx2 avx512f, 8 processors", "avx2"),
        ("avx2 avx512f avx512_bf16", "avx512_bf16"),
        ("avx2 avx512f avx512_bf16 amx_bf16", "amx"),
        ("bf16", None),
        ("", None),
    ],
)
def test_the_fastest_instructions_give_the_class(features, found):
    assert class_of(replace(AVX2, features=features)) == found


def test_only_processors_have_classes():
    assert class_of(replace(AVX2, kind="cuda")) is None
    assert shipped_calibration(replace(AVX2, kind="cuda")) is None


def test_each_table_is_of_its_class():
    tables = files("amprewrite.plan") / "tables"
    names = sorted(file.name for file in tables.iterdir())
    assert "torch-cpu-avx2.json" in names
    for name in names:
        framework, _, kind = name.removesuffix(".json").split("-")
        flag = next(flag for flag, found in CLASSES if found == kind)
        device = replace(AVX2, framework=framework, features=flag)
        table = shipped_calibration(device)
        assert table is not None
        assert (table.device.framework, class_of(table.device)) == (framework, kind)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_without_instructions_low_products_are_slower(framework):
    table = shipped_calibration(replace(AVX2, framework=framework))
    assert table is not None
    slower = [
        timed.seconds["bfloat16"] > timed.seconds[FULL]
        for timed in table.contractions
        if timed.macs > 2**20 and timed.thin > 1
    ]
    assert len(slower) > 5
    assert all(slower)


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_with_instructions_large_low_products_are_faster(framework, flag):
    features = f"avx2 avx512f avx512_bf16 {flag}"
    table = shipped_calibration(replace(AVX2, framework=framework, features=features))
    assert table is not None
    faster = [
        timed.seconds["bfloat16"] < timed.seconds[FULL]
        for timed in table.contractions
        if timed.macs > 2**22 and timed.thin >= 64 and timed.kind == "product"
    ]
    assert len(faster) > 3
    assert all(faster)


def test_the_variable_fixes_prices(monkeypatch):
    monkeypatch.setenv("AMPREWRITE_PRICES", "default")
    assert prices_are_fixed()
    monkeypatch.delenv("AMPREWRITE_PRICES")
    assert not prices_are_fixed()
