"""What is timed on a device of torch, and which device a model is on."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.probes import calibrate
from amprewrite.frameworks.torch_fx.probes.calibrate import (
    default_device,
    describe,
    device_of,
    measure,
)
from amprewrite.measure.timing import Scope

SMALL = Scope(((1, 8), (8, 16)), ((1, 4),), ((4, 2, 6),), (5,), 3, 128, 0.0)
CPU = torch.device("cpu")


def test_every_dtype_of_every_shape_is_timed() -> None:
    found = measure(CPU, SMALL)
    kinds = [(c.kind, c.batches, c.thin, c.macs) for c in found.contractions]
    assert kinds == [
        ("product", 1, 1, 64),
        ("product", 1, 8, 8 * 16 * 16),
        ("batched", 3, 1, 16),
        ("convolution", 1, 4, 4 * 18 * 36),
        ("attention", 4, 5, 2 * 5 * 5 * 64),
    ]
    dtypes = {"float32", "bfloat16", "float16"}
    assert all(set(c.seconds) == dtypes for c in found.contractions)
    assert {c.op for c in found.elementwise} == set(calibrate.ELEMENTWISE)
    counts = {c.op: c.elements for c in found.elementwise}
    assert (counts["add"], counts["relu"], counts["mean"]) == (384, 256, 130)
    assert set(found.casts) == {"bfloat16", "float16"}
    assert found.device == describe(CPU)
    assert found.emits_accumulators is None


def test_nothing_is_recorded_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    grad: list[bool] = []
    ops = {"add": (lambda x: grad.append(torch.is_grad_enabled()) or x, 1)}
    monkeypatch.setattr(calibrate, "ELEMENTWISE", ops)
    measure(CPU, SMALL)
    assert grad
    assert not any(grad)


def test_a_cpu_is_told_apart_by_its_instructions_and_threads() -> None:
    found = describe(CPU)
    assert (found.framework, found.kind) == ("torch", "cpu")
    assert found.version == torch.__version__
    assert found.name
    assert found.features.endswith(f"{torch.get_num_threads()} threads")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert describe(CPU) != found
    finally:
        torch.set_num_threads(before)


def test_other_devices_are_told_apart_by_the_precision_of_float32() -> None:
    found = describe(torch.device("meta"))
    assert (found.kind, found.name) == ("meta", "meta")
    assert found.features == "float32 precision highest"


def test_the_device_of_a_model_is_that_of_its_weights_or_arguments() -> None:
    here, nowhere = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")
    args = (3, torch.ones(2))
    assert device_of(here, None, None) == describe(CPU)
    assert device_of(nowhere, None, {"x": torch.ones(2)}) == describe(CPU)
    exported = torch.export.export(here, (torch.ones(1, 2),))
    assert device_of(exported, args, {}) == describe(CPU)
    assert device_of(torch.nn.ReLU(), args, {}) == describe(CPU)
    assert device_of(torch.nn.ReLU(), None, None) == describe(CPU)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_the_cpu_is_timed() -> None:
    assert default_device() == CPU


@pytest.mark.gpu
def test_a_gpu_is_timed() -> None:
    found = measure(torch.device("cuda"), SMALL)
    assert found.device.kind == "cuda"
    assert found.device.name == torch.cuda.get_device_name()
    weights = torch.nn.Linear(2, 2, device="cuda")
    assert device_of(weights, None, None) == found.device
    assert default_device().type == "cuda"


def test_modules_run_op_by_op() -> None:
    assert calibrate.default_target() == "eager"
