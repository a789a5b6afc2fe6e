"""The result of an emulated product alone, from that of the original in float32."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.comparison import compare
from amprewrite.frameworks.torch_fx.probes import emulated_products
from amprewrite.frameworks.torch_fx.probes.emulated_products import (
    is_known,
    rounded_alone,
    sharing,
)
from amprewrite.measure.runs import Call
from amprewrite.verify.own_errors import op_error


@pytest.fixture(autouse=True)
def emulating(monkeypatch: Any) -> None:
    """A processor that emulates bfloat16."""
    monkeypatch.setattr(
        emulated_products, "is_emulated", lambda dtype, _device: dtype is torch.bfloat16
    )


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_right_kernel_gives_the_original_rounded() -> None:
    exact, other = drawn(50, 50), drawn(50, 50) + 1
    made = rounded_alone([exact.bfloat16()], [exact], [other])
    assert made is not None
    assert torch.equal(made[0], other.bfloat16())


@pytest.mark.parametrize(
    ("actual", "checked"),
    [
        (drawn(50, 50) * 1.01, drawn(50, 50)),  # a wrong kernel
        (drawn(50, 50) * torch.inf, drawn(50, 50) * torch.inf),
        (drawn(50), drawn(50, 50)),
    ],
)
def test_a_wrong_kernel_is_run_alone(actual: Any, checked: Any) -> None:
    assert rounded_alone([actual.bfloat16()], [checked], [checked]) is None
    assert rounded_alone([actual.bfloat16()], None, [checked]) is None
    assert rounded_alone([actual.bfloat16()], [checked], None) is None


def test_only_large_products_that_round_once_are_known() -> None:
    wide = [drawn(200, 200).double()] * 2
    low = [x.bfloat16() for x in wide]
    assert is_known("linear", wide, low)
    assert not is_known("linear", wide, wide)
    assert not is_known("linear", wide, [x[:9] for x in low])
    assert not is_known("linear", wide, [low[0], low[1].half()])
    assert not is_known("layer_norm", wide, low)


def rows(model: Any, x: Any, *, shared: bool) -> dict[str, Any]:
    """The errors of every op, with products in float32 or by their kernels."""
    converted = amprewrite.convert(model, args=(x,))
    found: dict[str, Any] = {}

    def observe(sample: Any) -> None:
        decision = sample.decision or converted.plan.by_op[sample.op]
        found[sample.op] = bool(sample.checked), op_error(sample, decision)

    with sharing(2**30 if shared else 0):
        compare.walk(model, converted, Call((x,), {}), observe)
    return found


def test_the_errors_of_ops_are_those_of_kernels(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 200), nn.LayerNorm(200)
    model, x = nn.Sequential(*layers).eval(), torch.randn(200, 200)
    found = rows(model, x, shared=True)
    monkeypatch.setattr(emulated_products, "is_emulated", lambda *_: False)
    wanted = rows(model, x, shared=False)
    assert [name for name, (checked, _) in found.items() if checked] == [
        "linear",
        "linear_1",
    ]
    assert found.keys() == wanted.keys()
    for name, (_, row) in found.items():
        kernels = wanted[name][1]
        assert row.accumulated == kernels.accumulated
        assert row.own == pytest.approx(kernels.own, rel=1e-3)
        assert row.kernel == pytest.approx(kernels.kernel, rel=0.05)
        assert (row.explained, row.largest) == (kernels.explained, kernels.largest)


def test_a_kernel_that_is_wrong_is_a_fault() -> None:
    model, x = nn.Linear(200, 200).eval(), drawn(200, 200)

    class Wrong(emulated_products.ProductMode):
        def __torch_dispatch__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            is_product = (
                func in emulated_products.PRODUCTS and made.dtype is torch.bfloat16
            )
            return made * 1.1 if is_product else made

    with Wrong():
        checked, row = rows(model, x, shared=True)["linear"]
    assert row.is_fault
    assert row.own > 0.05
    assert not checked
