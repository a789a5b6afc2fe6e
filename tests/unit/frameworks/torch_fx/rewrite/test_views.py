"""Outputs that are views of one value stay views of one value when they are cast."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

import amprewrite
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from tests.torch_programs import Program

PLACEMENTS = ("promote", "paint", "optimal")
LARGE = 256  # so that low precision pays and placement optimal chooses it


def plain(m: Any, x: Any) -> Any:
    h = m.linear(x)
    return h, h[1:3], h.t()[2]


def written(m: Any, x: Any) -> Any:
    h = m.linear(x)
    one, two = h.chunk(2, -1)
    one.mul_(0.5)
    return {"two": two, "one": one}


def remade(m: Any, x: Any) -> Any:
    h = checkpoint(m.linear, x, use_reentrant=False)
    parts = h.unbind(0)
    return parts[2], h.view(-1), parts[0]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("function", [plain, written, remade])
def test_a_write_to_one_output_is_seen_in_the_others(
    function: Any, placement: str
) -> None:
    torch.manual_seed(0)
    model = Program(function, linear=nn.Linear(LARGE, LARGE)).eval()
    x = torch.randn(LARGE, LARGE)
    module = amprewrite.convert(model, args=(x,), placement=placement)
    with torch.no_grad():
        ours = list(pytree.tree_leaves(module(x)))
        theirs = list(pytree.tree_leaves(model(x)))
        for outputs in (ours, theirs):
            outputs[0].fill_(7.0)
    for one, two in zip(ours, theirs, strict=True):
        assert one.dtype == two.dtype == torch.float32
        assert torch.equal(one == 7.0, two == 7.0)
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)


def test_what_shares_a_storage_is_cast_once() -> None:
    model = Program(plain, linear=nn.Linear(LARGE, LARGE)).eval()
    plan = amprewrite.inspect(model, args=(torch.randn(LARGE, LARGE),))
    (cast,) = [c for c in plan.casts if c.to_dtype == "float32"]
    assert cast.value == "linear"
    assert cast.uses == (("output", 0), ("output", 1), ("output", 2))
