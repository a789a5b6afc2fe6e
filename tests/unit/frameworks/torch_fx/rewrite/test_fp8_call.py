"""Programs with products of 8 bits: which ops, and the values of the emulation."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning, PlanMismatchError
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import FP8_DOT
from amprewrite.frameworks.torch_fx.rewrite.quantise_contractions import call_kernel
from amprewrite.policy import load_policy

pytestmark = pytest.mark.filterwarnings("ignore:kernel scaled_mm")


class Products(nn.Module):
    """Each spelling of a product with a matrix, and two that the kernel lacks."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(5, 4, bias=False)
        self.table = nn.Parameter(torch.randn(10, 5) / 3)
        self.conv = nn.Conv1d(4, 4, 1)

    def forward(self, x):
        h = self.first(x)
        h = h @ self.table
        h = torch.addmm(h[0, 0], h.flatten(0, 1), self.table.t() @ self.table)
        h = self.last(h).view(*x.shape[:2], 4)
        h = h @ h.transpose(1, 2)
        return self.conv(h)


def policy(tmp_path, kernel, base="fp8"):
    path = tmp_path / f"{kernel}.toml"
    path.write_text(f'extends = "{base}"\n[contract]\nkernel = "{kernel}"\n')
    return load_policy(str(path))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Products().train()


@pytest.fixture(scope="module")
def x():
    return torch.randn(3, 4, 6)


def targets(converted, x):
    programs: Any = programs_of(converted)
    return [
        node
        for node in programs.program_for(converted, (x,), {}).rewritten.graph.nodes
        if node.target is FP8_DOT
    ]


def test_products_with_a_matrix_run_by_the_kernel(model, x, tmp_path):
    converted = amprewrite.convert(model, policy(tmp_path, "scaled_mm"), args=(x,))
    kernels = [d.kernel for d in converted.plan.quantised]
    kernel = "scaled_mm"
    assert kernels == [kernel, kernel, kernel, "", kernel, "", ""]
    assert len(targets(converted, x)) == 4
    assert "kernel scaled_mm" in converted.plan.explain(converted.plan.quantised[0].op)
    plain = amprewrite.convert(model, "fp8", args=(x,))
    found, wanted = converted(x), plain(x)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    grads = []
    for run in (converted, plain):
        model.zero_grad()
        (run(x) ** 2).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (grads[0] - grads[1]).norm() < 0.1 * grads[1].norm()
    assert torch.equal(copy.deepcopy(converted)(x), found)
    assert torch.equal(pickle.loads(pickle.dumps(converted))(x), found)
    assert amprewrite.verify(model, converted, (x,)).ok


def test_a_plan_keeps_the_kernel(model, x, tmp_path):
    plan = amprewrite.inspect(model, policy(tmp_path, "scaled_mm"), args=(x,))
    plan.save(tmp_path / "plan.json")
    assert amprewrite.Plan.load(tmp_path / "plan.json") == plan
    table = plan.to_json()
    conv = next(d for d in table["decisions"] if d["canonical"] == "conv")
    conv["kernel"] = "scaled_mm"
    edited = amprewrite.Plan.from_json(table)
    with pytest.raises(PlanMismatchError, match="kernel 'scaled_mm', which takes no"):
        amprewrite.convert(model, plan=edited, args=(x,))


def test_what_the_kernel_lacks_is_said(model, x, tmp_path):
    with pytest.warns(AmpWarning, match="3 of 7 contractions are emulated: addmm"):
        amprewrite.convert(model, policy(tmp_path, "scaled_mm"), args=(x,))


def test_without_a_gpu_auto_is_emulated(model, x, tmp_path):
    converted = amprewrite.convert(model, policy(tmp_path, "auto"), args=(x,))
    assert [d.kernel for d in converted.plan.quantised][:2] == ["auto", "auto"]
    assert not targets(converted, x)
    plain = amprewrite.convert(model, "fp8", args=(x,))
    assert torch.equal(converted(x), plain(x))


def test_an_old_device_is_refused_when_it_is_written(model, x, tmp_path):
    plan = amprewrite.inspect(model, policy(tmp_path, "scaled_mm"), args=(x,))
    node = torch.fx.Graph().placeholder("x")
    node.meta["val"] = type("Val", (), {"device": torch.device("xpu:0")})()
    with pytest.raises(amprewrite.errors.UnsupportedError, match="xpu:0 has none"):
        call_kernel(node, plan.quantised[0])


def test_compiled_programs_have_the_same_values_and_gradients(tmp_path):
    torch.manual_seed(0)
    model: Any = nn.Linear(6, 10).train()
    x = torch.randn(3, 4, 6)
    converted = amprewrite.convert(model, policy(tmp_path, "scaled_mm"), args=(x,))
    fast = torch.compile(converted, backend="aot_eager")
    found = []
    for run in (converted, fast):
        model.zero_grad()
        y = run(x)
        y.sum().backward()
        found.append((y, model.weight.grad.clone()))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])
