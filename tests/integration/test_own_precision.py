"""Models that make half precision, or regions of autocast, by themselves."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")

Forward = Callable[[nn.Module, Any], Any]


def model(forward: Forward) -> nn.Module:
    """Return a module with one layer and this forward."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    torch.manual_seed(0)
    return Model().eval()


def x() -> Any:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def contractions(self: Any, x: Any) -> Any:
    v, w = x.bfloat16(), self.first.weight.bfloat16()
    return (
        v @ w,
        F.linear(v, w),
        torch.mm(v, w),
        torch.bmm(v[None], w[None]),
        torch.addmm(v, v, w),
        torch.baddbmm(v[None], v[None], w[None]),
        torch.einsum("ij,jk->ik", v, w),
        torch.tensordot(v, w, 1),
        torch.inner(v, w),
        torch.linalg.multi_dot([v, w, w]),
        F.conv1d(v[None], w[:, :4, None]),
        F.conv_transpose1d(v[None], w[:4, :, None]),
        F.scaled_dot_product_attention(v[None], v[None], v[None]),
        F.mse_loss(v, v + 1),
        F.cross_entropy(v, torch.arange(4)),
        torch.prod(v),
        F.pad(v[None], (1, 1), mode="reflect"),
    )


@pytest.mark.parametrize("policy", ["off", "autocast-cuda"])
def test_what_a_model_makes_in_half_precision_keeps_its_dtype(policy: str) -> None:
    made = model(contractions)
    converted = amprewrite.convert(made, policy, args=(x(),))
    for one, other in zip(converted(x()), made(x()), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    made_half = [d for d in converted.plan.decisions if "bfloat16" in d.operands]
    assert len(made_half) > 15
    assert {dtype for d in made_half for dtype in d.results} == {"bfloat16"}


def by_dtype(self: Any, x: Any) -> Any:
    v = x.bfloat16() @ self.first.weight.bfloat16()
    return x.to(v.dtype), torch.zeros(2, dtype=v.dtype)


def test_code_that_asks_for_a_dtype_hears_the_one_of_a_call() -> None:
    made = model(by_dtype)
    converted = amprewrite.convert(made, "off", args=(x(),))
    assert [t.dtype for t in converted(x())] == [torch.bfloat16, torch.bfloat16]


def regions(self: Any, x: Any) -> Any:
    with torch.autocast("cpu"):
        default = self.first(x)
    with torch.autocast("cpu", dtype=torch.float16):
        named = x @ x.t()
    with torch.autocast("cpu", enabled=False):
        full = self.first(x)
    return default, named, full, torch.is_autocast_enabled("cpu")


def broken(self: Any, x: Any) -> Any:
    found = regions(self, x)
    torch._dynamo.graph_break()
    return found


@pytest.mark.parametrize("policy", ["off", "bf16"])
@pytest.mark.parametrize("forward", [regions, broken])
def test_regions_of_autocast_keep_their_dtypes(forward: Forward, policy: str) -> None:
    made = model(forward)
    args = (x(),) if forward is regions else None  # dynamo captures at the call
    converted = amprewrite.convert(made, policy, args=args)
    found, want = converted(x()), made(x())
    assert found[-1] is False
    for one, other in zip(found[:-1], want[:-1], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
