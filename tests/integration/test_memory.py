"""Memory of converted torch models: freed with them, one low copy of each weight."""

import gc
import weakref
from typing import Any

import pytest

import amprewrite
from amprewrite.backend import amprewrite as backend

torch = pytest.importorskip("torch")

from torch import nn

MODELS = 4
"""Models that are made and deleted in turn."""

WIDTH = 192
"""Extent of the matrices, which are too small to be packed: packed ones are no tensors.
"""

FULL = 4 * 2 * WIDTH**2
"""Bytes of the two matrices of a model in float32."""


def live_bytes(*, collected: bool = True) -> int:
    """Return the bytes of the memory of all tensors that the collector knows."""
    if collected:
        gc.collect()
    sizes: dict[int, int] = {}
    for found in gc.get_objects():
        if isinstance(found, torch.Tensor) and found.layout is torch.strided:
            with torch._C.DisableTorchFunctionSubclass():
                if type(found) in (torch.Tensor, nn.Parameter) and not found.is_meta:
                    storage = found.untyped_storage()
                    sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


class Model(nn.Module):
    """Two linear layers, with outputs by flags."""

    def __init__(self, first: Any = None) -> None:
        super().__init__()
        self.a = first or nn.Linear(WIDTH, WIDTH, bias=False)
        self.b = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, *, hidden=False, twice=False):
        h = self.a(x).relu()
        y = self.b(h)
        y = self.b(y) if twice else y
        return (y, h) if hidden else y


def run(call: Any, mode: str) -> None:
    x = torch.randn(4, WIDTH)
    if mode == "train":
        call(x).sum().backward()
        return
    with torch.no_grad():
        call(x)


def convert(model: Any, way: str) -> Any:
    if way == "backend":
        return torch.compile(model, backend=backend)
    if way == "function":

        def call(x: Any) -> Any:
            return model(x)

        return torch.compile(call, backend=backend)
    args = (torch.randn(4, WIDTH),) if way == "args" else None
    return amprewrite.convert(model, "bf16", args=args)


@pytest.mark.parametrize(
    ("way", "mode"),
    [
        *(("lazy", "eval"), ("lazy", "train"), ("lazy", "gradients")),
        *(("backend", "eval"), ("backend", "gradients")),
        *(("function", "eval"), ("args", "eval")),
    ],
)
def test_a_deleted_model_is_freed(way, mode):
    after: list[int] = []
    for _ in range(MODELS):
        model = Model().train(mode == "train")
        converted = convert(model, way)
        run(converted, "train" if mode == "gradients" else mode)
        gone = weakref.ref(model)
        del model, converted
        gc.collect()
        assert gone() is None
        after.append(live_bytes())
    assert after[-1] - after[0] < 0.1 * FULL


@pytest.mark.parametrize("way", ["lazy", "backend"])
def test_a_deleted_model_is_freed_after_its_weights_were_replaced(way):
    run(convert(Model().eval(), way), "eval")
    before = live_bytes()
    for _ in range(3):
        model = Model().eval()
        converted = convert(model, way)
        run(converted, "eval")
        target = model if way == "backend" else converted
        target.load_state_dict(Model().state_dict(), assign=True)
        run(converted, "eval")
        target.load_state_dict(Model().state_dict())
        run(converted, "eval")
        model.a.weight.data = torch.randn(WIDTH, WIDTH)
        run(converted, "eval")
        del model, converted, target
    assert live_bytes() - before < 0.1 * FULL


@pytest.mark.parametrize("way", ["lazy", "backend"])
def test_models_that_share_weights_are_freed_one_by_one(way):
    run(convert(Model().eval(), way), "eval")
    before = live_bytes()
    first = Model().eval()
    second = Model(first.a).eval()
    calls = [convert(model, way) for model in (first, second)]
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        calls[0](x)
        wanted = calls[1](x)
        del first, calls[0]
        gc.collect()
        assert torch.equal(calls[0](x), wanted)
    del second, calls, wanted
    assert live_bytes() - before < 0.1 * FULL


@pytest.mark.parametrize("way", ["lazy", "args", "lazy and dynamo"])
def test_all_programs_share_one_low_copy_of_the_weights(way):
    before = live_bytes()
    model = Model().eval()
    converted = convert(model, way)
    if "dynamo" in way:  # for a gradient of the weights, which stay in full beside
        converted(torch.randn(4, WIDTH))
        before += FULL
    with torch.no_grad():
        for shape in [(4,), (3, 5)]:
            x = torch.randn(*shape, WIDTH)
            for flags in ({}, {"hidden": True}, {"twice": True}):
                converted(x, **flags)
    assert len(converted.plans) >= 3
    assert live_bytes() - before <= FULL + 1.15 * FULL / 2
    with torch.no_grad():
        held = converted(torch.randn(7, WIDTH), hidden=True, twice=True)
    assert [leaf.dtype for leaf in held] == [torch.float32] * 2
    del held, model
    assert live_bytes() - before <= 1.15 * FULL / 2


def test_programs_keep_no_weights_that_were_replaced():
    converted = convert(Model().eval(), "args")
    before = live_bytes()
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        for _ in range(3):
            converted.load_state_dict(Model().state_dict(), assign=True)
            wanted = converted(x)
            assert torch.equal(converted.rewritten(x), wanted)
            converted(x, twice=True)
    assert live_bytes() - before < 0.1 * FULL


def test_programs_with_one_copy_follow_writes_to_the_weights():
    model = Model().eval()
    converted = amprewrite.convert(model, "bf16")
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        before = [converted(x), converted(x, twice=True)]
        for weight in converted.parameters():
            weight.data.mul_(2)
        after = [converted(x), converted(x, twice=True)]
    assert torch.equal(after[0], 4 * before[0])
    assert torch.equal(after[1], 8 * before[1])


def test_a_conversion_within_a_tolerance_leaves_no_candidate_behind():
    """Not even until the collector runs."""
    model, x = Model().eval(), torch.randn(2, WIDTH)
    before = live_bytes()
    gc.disable()
    try:
        converted = amprewrite.convert(
            model, "bf16", args=(x,), tolerance=0.02, device="cuda"
        )
        after = live_bytes(collected=False)
    finally:
        gc.enable()
    assert converted.plan.storage
    assert after - before <= 1.15 * FULL / 2
