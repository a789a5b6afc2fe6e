"""The devices of torch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx import devices
from amprewrite.measure.timing import bfloat16_instructions


def test_there_is_a_model_on_the_cpu_that_runs() -> None:
    before = torch.random.get_rng_state()
    first = devices.samples()[0]
    model: Any = first.model
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.device.kind == "cpu"
    assert (first.bfloat16, first.why) == bfloat16_instructions()
    assert model(*first.args).isfinite().all()


@pytest.mark.gpu
def test_there_is_a_model_on_the_accelerator() -> None:
    kinds = [sample.device.kind for sample in devices.samples()]
    assert kinds == ["cpu", "cuda"]


@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
def test_the_generation_of_a_gpu_is_said(monkeypatch: Any, capability: Any) -> None:
    def supported(*, including_emulation: bool) -> bool:
        return capability >= (8, 0) or including_emulation

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    found = devices._bfloat16(torch.device("cuda"))
    assert found == (
        capability[0] > 7,
        f"compute capability {capability[0]}.{capability[1]}",
    )


def test_of_other_devices_nothing_is_known() -> None:
    assert devices._bfloat16(torch.device("xpu"))[0] is None
