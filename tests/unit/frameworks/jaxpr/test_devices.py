"""The default device of JAX."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

import numpy as np

from amprewrite.frameworks.jaxpr import devices


def test_there_is_a_function_that_runs() -> None:
    (found,) = devices.samples()
    function: Any = found.model
    assert found.device.framework == "jax"
    output = np.asarray(function(*found.args))
    assert output.sum(-1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("device", "supported"),
    [
        ({"platform": "gpu", "compute_capability": "7.5"}, False),
        ({"platform": "gpu", "compute_capability": "12.0"}, True),
        ({"platform": "tpu", "device_kind": "TPU v5"}, True),
        ({"platform": "gpu", "device_kind": "MI300", "compute_capability": ""}, None),
    ],
)
def test_bfloat16_follows_from_the_generation(device: Any, supported: Any) -> None:
    found, why = devices._bfloat16(SimpleNamespace(**device))
    assert found is supported
    assert (device.get("compute_capability") or device["device_kind"]) in why
