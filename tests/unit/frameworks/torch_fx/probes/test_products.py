"""Products on a processor that emulates them: once each, or in float32."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amprewrite.frameworks.torch_fx.probes import emulated_products
from amprewrite.frameworks.torch_fx.probes.emulated_products import (
    InFloat32,
    Products,
    current_products,
    is_emulated,
    shared,
    sharing,
)

CPU = torch.device("cpu")
MANY = 2**30


class Kernels(TorchDispatchMode):
    """Record of the kernels that run, with the dtype of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, Any]] = []

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in emulated_products.PRODUCTS:
            self.ran.append((func.overloadpacket.__name__, made.dtype))
        return made


@pytest.fixture(autouse=True)
def emulating(monkeypatch: Any) -> None:
    """A processor that emulates bfloat16."""
    monkeypatch.setattr(
        emulated_products, "is_emulated", lambda dtype, _device: dtype is torch.bfloat16
    )


def pair(dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    draws = torch.Generator().manual_seed(0)
    one, two = (torch.randn(200, 200, generator=draws) for _ in range(2))
    return one.to(dtype), two.to(dtype)


def test_emulation_is_that_of_16_bits_without_instructions(monkeypatch: Any) -> None:
    for known, wanted in ((False, True), (True, False), (None, False)):
        is_emulated.cache_clear()
        monkeypatch.setattr(
            emulated_products, "bfloat16_instructions", lambda known=known: (known, "")
        )
        assert is_emulated(torch.bfloat16, CPU) is wanted
        assert is_emulated(torch.float16, CPU) is wanted
        assert not is_emulated(torch.float32, CPU)
        assert not is_emulated(torch.bfloat16, torch.device("cuda"))
    is_emulated.cache_clear()


def test_a_product_of_equal_operands_runs_once_and_gives_the_same_bits() -> None:
    one, two = pair()
    wanted = one @ two
    with Kernels() as kernels, Products(MANY).once():
        first, again = one @ two, one.clone() @ two.clone()
    assert kernels.ran == [("mm", torch.bfloat16)]
    assert torch.equal(first, wanted)
    assert torch.equal(again, wanted)


def test_what_is_written_to_a_result_is_not_in_the_next() -> None:
    one, two = pair()
    wanted = one @ two
    with Products(MANY).once():
        first = one @ two
        first.zero_()
        second = one @ two
        second.zero_()
        assert torch.equal(one @ two, wanted)


@pytest.mark.parametrize(
    "changed",
    [
        lambda one, two: (one, two.mT.contiguous().mT),  # another layout
        lambda one, two: (one, two.roll(1)),
        lambda one, two: (one.mT, two),
        lambda one, two: (one * torch.eye(200)[0].bfloat16(), two),
        lambda one, two: (one[:199], two),
    ],
)
def test_other_operands_are_another_product(changed: Any) -> None:
    one, two = pair()
    with Kernels() as kernels, Products(MANY).once():
        made = one @ two, torch.mm(*changed(one, two))
    assert len(kernels.ran) == 2
    assert torch.equal(made[1], torch.mm(*changed(one, two)))


def test_numbers_are_operands_too() -> None:
    one, two = pair()
    with Products(MANY).once():
        torch.addmm(one, one, two)
        made = torch.addmm(one, one, two, beta=2)
    assert torch.equal(made, torch.addmm(one, one, two, beta=2))


def test_small_products_and_other_dtypes_run_as_they_are() -> None:
    with Kernels() as kernels, Products(MANY).once():
        for one, two in (pair(torch.float32), (pair()[0][:8, :8], pair()[1][:8, :8])):
            _ = one @ two, one @ two
    assert len(kernels.ran) == 4


def test_as_many_bytes_are_kept_as_a_pass_takes() -> None:
    one, two = pair()
    kept = Products(100)
    with kept.once():
        for scale in range(20):
            _ = (one * scale) @ two
    # Of 100 weights, an operand and a result in 4 bytes: four results in 2 bytes.
    assert kept.capacity == 4 * (100 + 2 * 200 * 200)
    assert (len(kept.results), kept.bytes) == (4, 4 * 200 * 200 * 2)


def test_results_are_shared_in_a_context() -> None:
    one, two = pair()
    assert current_products() is None
    with Kernels() as kernels:
        with shared():
            _ = one @ two
        with sharing(MANY):
            assert current_products() is not None
            for _ in range(2):
                with shared():
                    _ = one @ two
    assert len(kernels.ran) == 2
    assert current_products() is None


@pytest.mark.parametrize(
    "run",
    [
        torch.mm,
        lambda one, two: torch.addmm(two[0], one, two),
        lambda one, two: torch.bmm(one[None], two[None]),
        lambda one, two: nn.functional.linear(one, two, two[0]),
        lambda one, two: nn.functional.conv1d(one[None], two[..., None]),
    ],
)
def test_in_float32_a_product_is_rounded_once(run: Any) -> None:
    one, two = pair()
    with Kernels() as kernels, InFloat32():
        made = run(one, two)
    assert kernels.ran[-1][1] is torch.float32  # after a sample of the kernel
    wanted = run(one.double(), two.double())
    unit = torch.finfo(torch.bfloat16).eps / 2
    assert made.dtype is torch.bfloat16
    assert ((made - wanted).abs() <= unit * wanted.abs() + 1e-4).all()


def test_a_kernel_that_rounds_inside_runs_as_it_is(monkeypatch: Any) -> None:
    monkeypatch.setattr(emulated_products, "rounds_once", lambda *_: False)
    one, two = pair()
    with Kernels() as kernels, InFloat32():
        made = one @ two
    assert kernels.ran == [("mm", torch.bfloat16)]
    assert torch.equal(made, one @ two)


def test_higher_order_operators_run_in_the_mode() -> None:
    one, two = pair()

    def run(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x @ two, lambda x: two @ x, (x,))

    with torch.no_grad():
        wanted = run(one)
        with Products(MANY).once():
            assert torch.equal(run(one), wanted)
