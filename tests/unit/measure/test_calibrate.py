"""Shapes and operation counts of all that is timed, by a bench that runs nothing."""

import pytest

from amprewrite.measure import timing as module
from amprewrite.measure.timing import (
    FEW,
    Kernel,
    Scope,
    calibrate,
    kernels_of,
    product,
)
from amprewrite.plan.hardware import Device, Kind

SMALL = Scope(((1, 8), (8, 16)), ((1, 4),), ((4, 2, 6),), (5, 100), 3, 128, 0.25)
DEVICE = Device(framework="none", version="1", kind="cpu", name="a device")
FACTORS = {"float32": 1.0, "bfloat16": 2.0, "float16": 3.0}


class Seconds:
    """A bench with runs that give their own seconds."""

    ops = {"add": 384, "exp": 256}  # noqa: RUF012  # as the protocol has it

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds
        self.waited: list[float] = []

    def contraction(self, kernel: Kernel, dtype: str):
        return lambda: kernel.macs * FACTORS[dtype]

    def repeats(self, kernel: Kernel) -> int:
        return 4 if kernel.kind == "batched" else 1

    def elementwise(self, op: str, dtype: str):
        return lambda: self.ops[op] * FACTORS[dtype]

    def cast(self, before: str, after: str, elements: int):
        return lambda: elements + FACTORS[before] / 8 + FACTORS[after] / 64

    def wait(self, result: float) -> None:
        self.waited.append(result)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits that were given to the clock, which is replaced."""
    limits: list[float] = []

    def medians(runs, wait, seconds):
        limits.append(seconds)
        found = {name: run() for name, run in runs.items()}
        for result in found.values():
            wait(result)
        return found

    monkeypatch.setattr(module, "medians", medians)
    return limits


def test_kernels_have_the_extents_of_one_product() -> None:
    rows = [(k.kind, k.thin, k.macs, k.terms, k.batches) for k in kernels_of(SMALL)]
    assert rows == [
        ("product", 1, 64, 8, 1),
        ("product", 8, 8 * 16 * 16, 16, 1),
        ("batched", 1, 16, 4, 3),
        ("convolution", 4, 4 * 18 * 36, 18, 1),
        ("attention", 5, 2 * 5 * 5 * 64, 5, 4),
        ("attention", 64, 2 * 100 * 100 * 64, 100, 4),
    ]
    shapes = [k.shapes for k in kernels_of(SMALL)]
    assert shapes[0] == product(1, 8).shapes == ((1, 8), (8, 8))
    assert shapes[2] == ((3, 1, 4), (3, 4, 4))
    assert shapes[3] == ((1, 4, 6, 6), (4, 2, 3, 3))
    assert shapes[4] == ((1, 4, 5, 64),) * 3
    assert [k.groups for k in kernels_of(SMALL)] == [1, 1, 1, 2, 1, 1]


def test_a_framework_is_timed_on_the_kinds_that_it_has(asked: list[float]) -> None:
    bench = Seconds("batched", "product")
    found = calibrate(bench, DEVICE, SMALL, emits=True)
    assert (found.device, found.emits_accumulators) == (DEVICE, True)
    assert [c.kind for c in found.contractions] == ["product", "product", "batched"]
    assert set(asked) == {0.25}
    assert len(bench.waited) == 3 * 3 + 2 * 3 + 2 * 3


def test_every_dtype_is_timed_and_repeats_are_shared() -> None:
    product, _, batched = calibrate(
        Seconds("batched", "product"), DEVICE, SMALL
    ).contractions
    assert product.seconds == {name: 64 * x for name, x in FACTORS.items()}
    assert (batched.macs, batched.batches) == (16, 3)
    assert batched.seconds == {name: 4 * x for name, x in FACTORS.items()}


def test_other_ops_and_casts_are_timed() -> None:
    found = calibrate(Seconds(), DEVICE, SMALL)
    assert found.emits_accumulators is None
    assert [(e.op, e.elements) for e in found.elementwise] == [
        ("add", 384),
        ("exp", 256),
    ]
    assert found.elementwise[1].seconds["float16"] == 256 * 3
    casts = found.casts["bfloat16"]
    assert (casts.elements, casts.down, casts.up, casts.launch) == (
        128,
        128 + 1 / 8 + 2 / 64,
        128 + 2 / 8 + 1 / 64,
        FEW + 1 / 8 + 2 / 64,
    )
    assert set(found.casts) == {"bfloat16", "float16"}
