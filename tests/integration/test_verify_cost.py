"""What ``verify`` runs and holds, counted: no clock is read."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import amprewrite

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amprewrite.frameworks.torch_fx.probes import emulated_products
from amprewrite.plan import sensitivity
from benchmarks.product_counter import products as counted

LAYERS = 4


def model_of(width: int) -> Any:
    layers = [(nn.Linear(width, width), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*(part for pair in layers for part in pair)).eval()


class Live(TorchDispatchMode):
    """Counter of the bytes of tensors that were made in it and are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(made):
            if type(tensor) in (torch.Tensor, nn.Parameter):
                self.add(tensor.untyped_storage())
        return made

    def add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self.drop, key, size)

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.bytes -= size


def peak(run: Callable[[], object]) -> int:
    with Live() as live:
        run()
    return live.peak


def wide_forward(model: Any, x: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return copy.deepcopy(model).double()(x.double())

    return run


PREDICTED = 1 + (LAYERS + 1) / LAYERS + 4 * (LAYERS - 1) / LAYERS
"""Passes of the predicted error: forwards, with the error of each weight (and of the
input), four times back to the first layer."""


@pytest.mark.parametrize(
    ("emulated", "passes"),
    [
        # The converted program whole and by ops, each op alone, and two baselines; the
        # original, and each product on rounded operands.
        (False, {"bfloat16": 5, "float32": 2 + PREDICTED}),
        # The converted program, which autocast repeats; beside the original, the
        # product on its own operands and on rounded ones, and cast all.
        (True, {"bfloat16": 1, "float32": 4 + PREDICTED}),
    ],
)
def test_passes_are_counted(
    emulated: bool,  # noqa: FBT001  # a case
    passes: dict[str, float],
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(emulated_products, "is_emulated", lambda *_: emulated)
    monkeypatch.setattr(sensitivity, "SAMPLES", 0)  # the fewest directions: four
    model, x = model_of(128), torch.randn(256, 128)
    converted = amprewrite.convert(model, args=(x,))
    unit = counted(wide_forward(model, x))["float64"]
    found = counted(lambda: amprewrite.verify(model, converted, (x,)))
    # The ops of the original beside the converted ones are the reference, too. A
    # hundredth is for the samples that show whether kernels round once.
    assert {dtype: flops / unit for dtype, flops in found.items()} == {
        dtype: pytest.approx(count, rel=0.02)
        for dtype, count in {"float64": 1, **passes}.items()
    }


def test_values_are_dropped_after_their_last_use() -> None:
    model, x = model_of(256), torch.randn(64, 256)
    converted = amprewrite.convert(model, args=(x,))
    one = peak(wide_forward(model, x))
    # All weights in float64 at once make 1.6, values that are kept 1.9.
    assert peak(lambda: amprewrite.verify(model, converted, (x,))) < 1.4 * one
