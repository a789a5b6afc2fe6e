"""One training step in 8 bits: a plain model loses its gradients, a scaled one none."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.fp8_fidelity import Row, Size, fidelity

SIZE = Size(width=32, layers=2, heads=2, length=64, batch=64)


@pytest.mark.parametrize("policy", ["simulate e4m3/e5m2", "simulate e4m3", "unit-fp8"])
def test_a_unit_scaled_model_keeps_its_gradients(policy):
    zeroed, cosines, error = fidelity(Row("unit", policy), SIZE, 0)
    assert zeroed < 1e-3
    assert min(cosines) > 0.98
    assert error < 0.15


def test_a_plain_model_needs_a_scale():
    zeroed, cosines, _ = fidelity(Row("plain", "simulate e4m3"), SIZE, 0)
    assert zeroed > 0.99
    assert max(cosines) < 0.1
    zeroed, cosines, error = fidelity(Row("plain", "fp8"), SIZE, 0)
    assert zeroed < 1e-3
    assert min(cosines) > 0.98
    assert error < 0.15
