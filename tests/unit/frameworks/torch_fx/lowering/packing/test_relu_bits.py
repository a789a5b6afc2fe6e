"""``relu`` on the bits of 16-bit floats."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.packing import fuse_epilogues
from amprewrite.frameworks.torch_fx.lowering.packing.fuse_epilogues import (
    LEAST_ELEMENTS,
    RELU_BITS,
    put_relus_on_bits,
)
from tests.packing import stand_in

aten = torch.ops.aten
LOW = (torch.bfloat16, torch.float16)
LARGE = torch.zeros(LEAST_ELEMENTS, dtype=torch.bfloat16)


def all_numbers(dtype: Any) -> Any:
    """Return every number of a 16-bit dtype, with infinities and each NaN."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def same(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same numbers, and NaN in the same places.

    Zeros of both signs are the same.
    """
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5)
    )


@pytest.mark.parametrize("dtype", LOW)
def test_each_number_gives_what_relu_gives(dtype: Any) -> None:
    x = all_numbers(dtype)
    wanted = torch.relu(x)
    assert wanted.isnan().any()
    out, into = fuse_epilogues.relu_out_of_place(x), fuse_epilogues.relu_in_place(x)
    assert out is not None
    assert into is not None
    before = x.clone()
    found = out(x)
    assert found.dtype == dtype
    assert same(found, wanted)
    assert torch.equal(x.view(torch.int16), before.view(torch.int16))
    assert into(x) is x
    assert same(x, wanted)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.view(4, 16, 32, 32),
        lambda x: x.view(4, 16, 32, 32).contiguous(memory_format=torch.channels_last),
        lambda x: x.view(256, 256).t(),
        lambda x: x.view(256, 256)[:, ::2],
    ],
)
def test_layouts_are_kept(dtype: Any, layout: Any) -> None:
    x = layout(all_numbers(dtype))
    run: Any = fuse_epilogues.relu_out_of_place(LARGE.to(dtype))
    wanted, found = torch.relu(x), run(x)
    assert same(found, wanted)
    assert found.stride() == wanted.stride()
    into: Any = fuse_epilogues.relu_in_place(LARGE.to(dtype))
    into(x)
    assert same(x, wanted)


@pytest.mark.parametrize(
    "value",
    [LARGE[1:], LARGE.float(), LARGE.short(), LARGE.to("meta"), None, 3],
)
def test_others_stay(value: Any) -> None:
    assert fuse_epilogues.relu_in_place(value) is None
    assert fuse_epilogues.relu_out_of_place(value) is None


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_view_that_is_negated_as_it_is_read_stays() -> None:
    value = torch.zeros(LEAST_ELEMENTS, dtype=torch.complex32).conj().imag
    assert value.is_neg()
    assert fuse_epilogues.relu_in_place(value) is None
    assert fuse_epilogues.relu_out_of_place(value.clone()) is not None


def test_symbolic_extents_stay() -> None:
    shapes = {"input": {0: torch.export.Dim("batch", min=2, max=2**20)}}
    program = torch.export.export(nn.ReLU(), (LARGE[:4],), dynamic_shapes=shapes)
    assert not put_relus_on_bits(program.graph)


@pytest.mark.parametrize("inplace", [True, False])
def test_ops_of_a_graph_are_replaced(*, inplace: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            low = nn.functional.relu((x * 2).view(256, 256), inplace=inplace)
            return low + nn.functional.relu(y), y.exp()

    x = torch.randn(LEAST_ELEMENTS, generator=torch.Generator().manual_seed(0))
    args = x.bfloat16(), x[:256]
    program = torch.export.export(Model(), args)
    module: Any = program.module(check_guards=False)
    wanted = module(*args)
    (record,) = put_relus_on_bits(module.graph)
    assert (record.name, record.what) == (RELU_BITS, fuse_epilogues.ON_BITS)
    assert len(record.ops) == 1
    module.recompile()
    for one, other in zip(module(*args), wanted, strict=True):
        assert torch.equal(one, other)


class Network(nn.Module):
    """A norm between a layer and its activation, and an activation in a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)
        self.norm = nn.BatchNorm1d(256)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))))


def test_a_converted_model_keeps_nan_and_derivatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch)
    torch.manual_seed(0)
    x = torch.randn(256, 256)
    model = Network().eval()
    made: Any = amprewrite.convert(model, args=(x,))
    plain: Any = amprewrite.convert(model, args=(x,), lowering=False)
    x[3, 5] = torch.nan
    with torch.no_grad():
        found, wanted = made(x), plain(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert found.isnan().any()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
    assert [one.name for one in made.plan.lowerings][-1] == RELU_BITS
    rows = [torch.ones(256, 256).requires_grad_() for _ in range(2)]
    for one, given in zip((made, plain), rows, strict=True):
        one(given).sum().backward()
    assert torch.equal(rows[0].grad, rows[1].grad)
