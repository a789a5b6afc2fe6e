"""Programs with 8 bits inside contractions, against the same by hand."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

import amprewrite
from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import QUANTISE
from amprewrite.frameworks.torch_fx.rewrite.quantise_contractions import QUANTISED

FORMATS = ("float8_e4m3fn", "float8_e5m2")


class Mixed(nn.Module):
    """Each kind of contraction, two readers of one value, and a write in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.table = nn.Parameter(torch.randn(8, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return self.by_ops(x, lambda t: t, lambda t, _=None: t, lambda t: t)

    def by_ops(self, x, rounded, backward, added):
        bias: Any = self.conv.bias
        conv = functional.conv1d(
            rounded(x), rounded(self.conv.weight), added(bias), padding=1
        )
        h = backward(conv, bias[:, None]).transpose(1, 2)
        q = functional.linear(rounded(h), rounded(self.q.weight), added(self.q.bias))
        q = backward(q, self.q.bias)
        k = backward(functional.linear(rounded(h), rounded(self.k.weight)))
        k = k * 1
        k[0].mul_(2)
        a = backward(
            functional.scaled_dot_product_attention(rounded(q), rounded(k), rounded(h))
        )
        m = backward(torch.bmm(rounded(a), rounded(k).transpose(1, 2)))
        flat = backward(rounded(m) @ rounded(a)).flatten(0, 1)
        y = torch.addmm(added(self.bias), rounded(flat), rounded(self.table))
        return backward(y, self.bias)


def by_hand(model, x, scaling):
    def rounded(t):
        return QUANTISE(t, FORMATS[0], "", scaling)

    def backward(t, bias=None):
        """Round the gradient, but for that of a bias, which is added without effect."""
        y = QUANTISE(t, "", FORMATS[1], scaling)
        return y if bias is None else y + (bias - bias.detach())

    return model.by_ops(x, rounded, backward, torch.Tensor.detach)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Mixed().train()


@pytest.fixture(scope="module")
def x():
    return torch.randn(3, 4, 5)


@pytest.fixture(scope="module")
def simulated(model, x):
    return amprewrite.simulate(model, scaling="current", args=(x,))


def gradients(model, y):
    model.zero_grad()
    (y**2).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_it_is_the_computation_by_hand(model, x, simulated):
    assert len(simulated.plan.quantised) == 7
    y = simulated(x)
    found = gradients(model, y)
    z = by_hand(model, x, "current")
    wanted = gradients(model, z)
    assert torch.equal(y, z)
    assert not torch.allclose(y, model(x), rtol=1e-3)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)


def test_a_value_is_rounded_once_for_all_readers(x, simulated):
    programs: Any = programs_of(simulated)
    program = programs.program_for(simulated, (x,), {})
    nodes = [
        n
        for n in program.rewritten.graph.nodes
        if n.meta.get("amprewrite") == QUANTISED and n.target is QUANTISE
    ]
    forward = [n.args[0].name for n in nodes if n.args[1]]
    assert len(forward) == 12  # of 15 operands: h has three readers, a two
    assert len(nodes) - len(forward) == 7


def test_it_verifies(model, x, simulated):
    report = amprewrite.verify(model, simulated, (x,), gradients=True)
    assert report.ok
    assert report.error > 0.01


def test_a_plan_is_saved_and_applied(model, x, simulated, tmp_path):
    simulated.plan.save(tmp_path / "plan.json")
    plan = amprewrite.Plan.load(tmp_path / "plan.json")
    assert plan == simulated.plan
    assert plan.quantised[0].scaling == "current"
    again = amprewrite.convert(model, plan=plan, args=(x,))
    assert torch.equal(again(x), simulated(x))
    table = plan.to_json()
    table["decisions"][0]["forward"] = "float9"
    with pytest.raises(PlanMismatchError, match="float9"):
        amprewrite.Plan.from_json(table)


def test_copies_and_pickles(x, simulated):
    y = simulated(x)
    assert torch.equal(copy.deepcopy(simulated)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(simulated))(x), y)


def test_another_process_loads_it(tmp_path):
    """The file names the operator, which loading registers."""
    x, path = torch.randn(2, 4), tmp_path / "model.pt"
    small = amprewrite.simulate(nn.Linear(4, 4), args=(x,))
    torch.save((small, x, small(x)), path)
    code = (
        "import sys, torch\n"
        "model, x, y = torch.load(sys.argv[1], weights_only=False)\n"
        "assert torch.equal(model(x), y)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_policy_fp8_stores_and_rounds(x):
    plain: Any = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    x = torch.randn(16, 64) * 1e-3
    low = amprewrite.convert(plain, "fp8", args=(x,))
    assert [d.precision for d in low.plan.quantised] == ["bfloat16"] * 2
    w = quantise_scaled(plain[0].weight.detach().bfloat16(), FORMATS[0], "current")
    h = quantise_scaled(x.bfloat16(), FORMATS[0], "current")
    h = functional.gelu(functional.linear(h, w, plain[0].bias.bfloat16()))
    v = quantise_scaled(plain[2].weight.detach().bfloat16(), FORMATS[0], "current")
    h = quantise_scaled(h, FORMATS[0], "current")
    wanted = functional.linear(h, v, plain[2].bias.bfloat16()).float()
    torch.testing.assert_close(low(x), wanted, rtol=1e-2, atol=1e-3)
    assert amprewrite.verify(plain, low, (x,)).ok
