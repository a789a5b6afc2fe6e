"""Random networks: a lowered program gives what the graph of its plan gives."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import amprewrite
from tests.fuzzing import seeds
from tests.packing import change_all_layouts
from tests.properties.networks import Network, network

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]

ROUNDINGS = 2.0**-8
"""Half of the spacing of bfloat16 at 1, twice."""


def errors(found: Any, wanted: Any) -> list[float]:
    """Return the relative L2 error of each output."""
    pairs = [(f.double(), w.double()) for f, w in zip(found, wanted, strict=True)]
    return [float((f - w).norm() / w.norm().clamp_min(1e-9)) for f, w in pairs]


def called(module: Any, x: Any) -> Any:
    """Return the outputs of a call of a copy of ``x``."""
    with torch.no_grad():
        return tuple(one.clone() for one in module(x.clone()))


def check(lowered: Any, plain: Any, reference: Network, x: Any) -> None:
    """Compare a lowered program with the graph of its plan, and with float64."""
    wanted = called(copy.deepcopy(reference).double(), x.double())
    found, usual = called(lowered, x), called(plain, x)
    assert [f.dtype for f in found] == [u.dtype for u in usual]
    assert [f.shape for f in found] == [u.shape for u in usual]
    bounds = errors(usual, wanted)
    if plain.plan.policy == "off":
        bounds = [1e-4 for _ in bounds]
    for one, bound in zip(errors(found, wanted), bounds, strict=True):
        assert one <= 2 * bound + ROUNDINGS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", seeds(40, 1000))
def test_a_lowered_network_gives_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_all_layouts(monkeypatch)
    net, x = network(seed)
    policy = ("bf16", "off", "bf16", "bf16-accumulate")[seed // 2 % 4]
    try:
        lowered: Any = amprewrite.convert(net, policy, args=(x,))
        plain: Any = amprewrite.convert(net, policy, args=(x,), lowering=False)
        check(lowered, plain, net, x)
        check(lowered, plain, net, 0.5 * x.flip(1))
        for module in lowered, plain, net:  # a packed weight that is written to
            with torch.no_grad():
                for weight in module.parameters():
                    weight.mul_(0.75)
        check(lowered, plain, net, x)
        bits = called(lowered, x)
        for other in copy.deepcopy(lowered), pickle.loads(pickle.dumps(lowered)):
            again = called(other, x)
            assert all(torch.equal(a, b) for a, b in zip(again, bits, strict=True))
        hidden = x.clone()
        hidden.view(-1)[seed % hidden.numel()] = torch.nan
        pair = called(lowered, hidden), called(plain, hidden)
        for one, two in zip(*pair, strict=True):
            assert torch.equal(one.isnan(), two.isnan())
    except Exception as failed:
        failed.add_note(f"{policy}, {tuple(x.shape)}\n{net.text()}")
        raise
