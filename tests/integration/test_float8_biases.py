"""Gradients of biases under policies of 8 bits: sums of what is not rounded."""

import pytest

import amprewrite
from amprewrite import dtypes

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

CONTRACT = """
extends = "bf16"
[contract]
forward = "float8_e4m3fn"
backward = "float8_e5m2"
scaling = "current"
kernel = "{kernel}"
"""


class Added(nn.Module):
    """An op with an addend, by the names of torch."""

    def __init__(self, name, addend, *shapes, **kwargs):
        super().__init__()
        self.name, self.kwargs = name, kwargs
        self.bias = nn.Parameter(torch.randn(addend))
        self.left, self.right = (nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, x):
        run = getattr(torch, self.name)
        return run(self.bias * x, self.left, self.right, **self.kwargs)


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)

    @property
    def bias(self):
        return self.layer.bias


X = torch.ones(())
CASES = {
    "linear": lambda: (Layer(nn.Linear(16, 8)), torch.randn(32, 16)),
    "linear_3d": lambda: (Layer(nn.Linear(16, 8)), torch.randn(4, 8, 16)),
    "linear_vector": lambda: (Layer(nn.Linear(16, 8)), torch.randn(16)),
    "conv1d": lambda: (Layer(nn.Conv1d(4, 8, 3)), torch.randn(2, 4, 9)),
    "conv1d_unbatched": lambda: (Layer(nn.Conv1d(4, 8, 3)), torch.randn(4, 9)),
    "conv2d": lambda: (Layer(nn.Conv2d(4, 8, 3)), torch.randn(2, 4, 9, 9)),
    "conv2d_same": lambda: (
        Layer(nn.Conv2d(4, 8, 3, padding="same", groups=2)),
        torch.randn(2, 4, 9, 9),
    ),
    "conv3d": lambda: (Layer(nn.Conv3d(2, 4, 2)), torch.randn(2, 2, 4, 4, 4)),
    "conv_transpose1d": lambda: (
        Layer(nn.ConvTranspose1d(4, 8, 3)),
        torch.randn(2, 4, 9),
    ),
    "conv_transpose2d": lambda: (
        Layer(nn.ConvTranspose2d(4, 8, 3)),
        torch.randn(2, 4, 6, 6),
    ),
    "addmm": lambda: (Added("addmm", 8, (32, 16), (16, 8)), X),
    "addmm_matrix": lambda: (Added("addmm", (32, 8), (32, 16), (16, 8)), X),
    "addmm_beta": lambda: (Added("addmm", (32, 1), (32, 16), (16, 8), beta=3), X),
    "addmv": lambda: (Added("addmv", 8, (8, 16), (16,)), X),
    "baddbmm": lambda: (Added("baddbmm", (8, 1), (2, 8, 16), (2, 16, 4)), X),
    "baddbmm_beta": lambda: (
        Added("baddbmm", (2, 8, 4), (2, 8, 16), (2, 16, 4), beta=0.5),
        X,
    ),
    "addbmm": lambda: (Added("addbmm", (8, 4), (2, 8, 16), (2, 16, 4)), X),
}


def gradient_of_bias(model, x, upstream):
    model.zero_grad()
    model(x).backward(upstream)
    return model.bias.grad.clone()


@pytest.mark.parametrize("lazy", [False, True], ids=["args", "lazy"])
@pytest.mark.parametrize("name", CASES)
def test_a_bias_has_the_gradient_of_bfloat16(name, lazy):
    torch.manual_seed(0)
    model, x = CASES[name]()
    upstream = torch.randn(model(x).shape)
    exact = gradient_of_bias(model, x, upstream)
    errors = {}
    for policy in ("bf16", "fp8"):
        args = None if lazy else (x,)
        converted = amprewrite.convert(model.train(), policy, args=args)
        result = gradient_of_bias(converted, x, upstream)
        errors[policy] = float((result - exact).norm() / exact.norm())
    assert converted.plan.quantised
    assert errors["fp8"] <= 1.01 * errors["bf16"] + 1e-7


@pytest.mark.parametrize("kernel", ["emulated", "scaled_mm"])
@pytest.mark.parametrize("name", ["linear", "linear_3d"])
def test_a_bias_has_it_by_each_kernel(name, kernel, tmp_path):
    torch.manual_seed(0)
    (tmp_path / "mine.toml").write_text(CONTRACT.format(kernel=kernel))
    model, x = CASES[name]()
    upstream = torch.randn(model(x).shape)
    exact = gradient_of_bias(model, x, upstream)
    converted = amprewrite.convert(model.train(), tmp_path / "mine.toml", args=(x,))
    result = gradient_of_bias(converted, x, upstream)
    assert (result - exact).norm() <= 4e-3 * exact.norm()


def test_simulated_formats_do_not_round_it_at_all():
    torch.manual_seed(0)
    model, x = CASES["linear"]()
    upstream = torch.randn(32, 8)
    exact = gradient_of_bias(model, x, upstream)
    simulated = amprewrite.simulate(model.train(), scaling="current", args=(x,))
    torch.testing.assert_close(gradient_of_bias(simulated, x, upstream), exact)


def test_weights_and_inputs_have_gradients_of_the_rounded_one():
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 8), torch.randn(32, 16, requires_grad=True)
    simulated = amprewrite.simulate(layer.train(), scaling="none", args=(x,))
    upstream = torch.randn(32, 8)
    simulated(x).backward(upstream)
    rounded = dtypes.quantise(upstream, "float8_e5m2")
    weight = dtypes.quantise(layer.weight.detach(), "float8_e4m3fn")
    torch.testing.assert_close(x.grad, rounded @ weight)


def test_a_residual_that_is_added_has_the_gradient_too():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return torch.addmm(x, x, self.w)

    torch.manual_seed(0)
    model, x = Block().train(), torch.randn(4, 8, requires_grad=True)
    simulated = amprewrite.simulate(model, scaling="none", args=(x,))
    upstream = torch.randn(4, 8)
    simulated(x).backward(upstream)
    rounded = dtypes.quantise(upstream, "float8_e5m2")
    weight = dtypes.quantise(model.w.detach(), "float8_e4m3fn")
    torch.testing.assert_close(x.grad, upstream + rounded @ weight.t())


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("size", [3e38, 1e30, 1.0, 1e-30, 1e-33])
def test_sizes_at_the_ends_of_the_range_survive(framework, size):
    torch.manual_seed(0)
    x, w = torch.rand(4, 16) * size, torch.rand(8, 16) / 64
    exact = functional.linear(x.double(), w.double())
    if framework == "torch":
        layer = nn.Linear(16, 8, bias=False)
        layer.weight.data = w
        result = amprewrite.simulate(layer.eval(), scaling="current", args=(x,))(x)
    else:
        jnp = pytest.importorskip("jax.numpy")
        left, right = jnp.asarray(x.numpy()), jnp.asarray(w.numpy())
        function = amprewrite.simulate(
            lambda x, w: x @ w.T, scaling="current", args=(left, right)
        )
        result = torch.tensor(function(left, right).__array__())
    assert (result.double() - exact).norm() <= 0.05 * exact.norm()
