"""Prices of accelerators by their data sheets."""

import pytest

from amprewrite.passes.cost.cost_model import COMPILED, EAGER, sheet_model
from amprewrite.plan.hardware import Device


def gpu(name, kind="cuda"):
    return Device(framework="torch", version="1", kind=kind, name=name)


@pytest.mark.parametrize(
    ("name", "balance", "speedup"),
    [
        ("NVIDIA A100-SXM4-80GB", 0.209, 8.0),
        ("NVIDIA A100-PCIE-40GB", 0.159, 8.0),
        ("NVIDIA H100 80GB HBM3", 0.1, 7.4),
        ("NVIDIA H100 PCIe", 0.078, 7.4),
        ("NVIDIA H200", 0.143, 7.4),
    ],
)
def test_figures_of_the_sheets(name, balance, speedup):
    found = sheet_model(EAGER, gpu(name))
    assert found is not None
    assert found.mac_bytes == pytest.approx(balance, abs=1e-3)
    assert found.speedup == pytest.approx(speedup, abs=0.03)
    assert found.launch > 10 * EAGER.launch
    assert found.source == f"by the data sheet of {name}"


def test_a_compiled_program_starts_no_casts():
    found = sheet_model(COMPILED, gpu("NVIDIA H100 80GB HBM3", "gpu"))
    assert found is not None
    assert (found.launch, found.fused) == (0, COMPILED.fused)


def test_others_have_no_sheet():
    assert sheet_model(EAGER, gpu("NVIDIA GeForce RTX 4090")) is None
    assert sheet_model(EAGER, gpu("H100", "cpu")) is None
