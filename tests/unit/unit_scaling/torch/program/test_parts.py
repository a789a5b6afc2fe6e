"""Parts of the pass on torch: calls, rules, initialisation, writing."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.utils.checkpoint import checkpoint

import amprewrite
from amprewrite.errors import (
    AmpWarning,
    CaptureError,
    UnitScalingError,
    UnsupportedError,
)
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.unit_scaling import check_gradient_validity, rule, scale_fwd
from amprewrite.unit_scaling.graph.scales import resolve
from amprewrite.unit_scaling.graph.units import differentiable, find_units
from amprewrite.unit_scaling.program import Settings
from amprewrite.unit_scaling.rules import masked_softmax
from amprewrite.unit_scaling.torch.program.insert import insert_scales, without_writes
from amprewrite.unit_scaling.torch.program.op_rules import Call, rule_by_name
from amprewrite.unit_scaling.torch.program.rules import Rules, op_by_sample
from amprewrite.unit_scaling.torch.program.scaled_model import capture, init_units


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x):
        return F.relu(self.norm(self.linear(x)), inplace=True)


def exported(model, *args):
    return torch.export.export(model, args)


def calls(module):
    reading = read(module)
    live = differentiable(reading.graph)
    found = {
        op.canonical: Call(op, reading.sites[op.name].node, reading, live)
        for op in live.ops
    }
    return reading, live, found


def test_a_rule_by_name_is_that_of_the_extents():
    _, _, found = calls(exported(Layer(), torch.ones(4, 64)).module())
    linear: Any = rule_by_name(found["linear"])
    forward, backward = rule("linear", fan_in=64, fan_out=32, batch=4)
    assert linear.forward == forward
    assert linear.backward == dict(enumerate(backward.values()))
    assert found["linear"].index("bias") == 2
    assert found["linear"].index("input") == 0
    assert "at" in found["linear"].where


def test_a_sample_agrees_with_the_closed_form():
    _, _, found = calls(exported(Layer(), torch.ones(16, 64)).module())
    shapes = {0: (16, 64), 1: (32, 64), 2: (32,)}
    measured = op_by_sample(found["linear"], {}, shapes, {})
    by_name: Any = rule_by_name(found["linear"])
    # The bias is drawn too: one term more.
    assert measured.forward == pytest.approx(65**-0.5, rel=0.02)
    for index in range(3):
        assert measured.backward[index] == pytest.approx(
            resolve(by_name.backward[index], lambda *_: 16), rel=0.05
        )


def test_rules_cover_every_unit():
    module = exported(Layer(), torch.ones(4, 64)).module()
    without_writes(module)
    reading, live, _ = calls(module)
    units = find_units(live)
    found = Rules(reading, live, ((), {}), {}).of(units, frozenset())
    assert set(found) == {unit.name for unit in units}


def test_writes_become_new_tensors():
    module = exported(Layer(), torch.ones(4, 64)).module()
    want = module(torch.arange(256.0).view(4, 64).sin())
    without_writes(module)
    module.recompile()
    assert "aten.relu_" not in module.code
    assert torch.equal(module(torch.arange(256.0).view(4, 64).sin()), want)


def test_matrices_get_unit_deviation_and_biases_zero():
    model = Layer()
    model.extra = nn.Parameter(torch.zeros(100, 100))
    init_units(model)
    assert model.linear.weight.std().item() == pytest.approx(1)
    assert model.extra.std().item() == pytest.approx(1, rel=0.1)
    assert not model.linear.bias.any()
    assert (model.norm.weight == 1).all()


def test_an_exported_program_is_scaled():
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    made = amprewrite.unit_scale(exported(Layer(), x), (x,))
    assert "amprewrite.scale" in made.code
    assert made(x).std().item() == pytest.approx(1, rel=0.1)
    scaled = insert_scales(exported(Layer(), x).module(), ((x,), {}), Settings())
    assert scaled.summary() == made.scales.summary()


def test_a_program_is_captured_for_each_mode_and_signature():
    class Drops(Layer):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, self.training)

    x = torch.randn(4, 64)
    model = amprewrite.unit_scale(Drops(), (x,))
    training = model.scales
    assert torch.equal(model.eval()(x), model(x))
    assert training.diff(model.scales)
    assert model(torch.randn(3, 5, 64)).shape == (3, 5, 32)
    found = vars(model)["_amprewrite_scaled"].found
    again = capture(model, (x,), {}, Settings())
    assert again.structure in [program.structure for program in found]


def test_a_flag_and_the_mode_of_a_part_are_followed():
    class Switch(Layer):
        def __init__(self):
            super().__init__()
            self.negative, self.drop = False, nn.Dropout(0.5)

        def forward(self, x):
            y = self.drop(super().forward(x))
            return -y if self.negative else y

    x = torch.randn(4, 64)
    model = amprewrite.unit_scale(Switch().eval(), (x,))
    y = model(x)
    model.negative = True
    torch.testing.assert_close(model(x), -y)
    model.drop.train()
    assert (model(x) == 0).sum() > (y == 0).sum()
    model.negative = False
    model.drop.eval()
    assert torch.equal(model(x), y)
    assert len(vars(model)["_amprewrite_scaled"].found) == 3


def test_a_checkpoint_is_scaled_like_what_it_runs():
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
            self.keeps = False

        def part(self, x):
            return x + self.two(torch.tanh(x))

        def forward(self, x):
            x = self.one(x)
            if self.keeps:
                return self.part(x)
            return checkpoint(self.part, x, use_reentrant=False)

    torch.manual_seed(0)
    x, plain = torch.randn(8, 16), Recomputed()
    made = amprewrite.unit_scale(plain, (x,))
    plain.keeps = True
    want = amprewrite.unit_scale(plain, (x,))
    torch.testing.assert_close(made(x), want(x))
    assert len(made.scales.residuals) == 1
    assert min(check_gradient_validity(made, (x,)).values()) > 0.9999


def _write_to_a_part(w, x):
    y = x * w
    y[:, 0] = 1.0
    return y


def _fill_parts(w, x):
    y = torch.zeros(4, 8)
    y[:, :4] = (x * w)[:, :4]
    return y


@pytest.mark.parametrize(
    ("forward", "match"),
    [
        (lambda w, x: scale_fwd(x * w, 2.0), "has factors of unit scaling already"),
        (_write_to_a_part, "writes to a tensor that is differentiated"),
        (_fill_parts, "writes to a tensor that is differentiated"),
        (lambda _, x: (x > 0).int(), "there is nothing"),
    ],
)
def test_programs_that_cannot_be_scaled_are_refused(forward, match):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return forward(self.weight, x)

    with pytest.raises((UnsupportedError, UnitScalingError), match=match):
        amprewrite.unit_scale(Model(), (torch.ones(4, 8),))


def test_complex_numbers_are_refused():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return torch.fft.ifft(torch.fft.fft(x * self.weight)).real

    with pytest.raises(UnsupportedError, match="complex tensors"):
        amprewrite.unit_scale(Spectrum(), (torch.ones(4, 8),))


class Tail(nn.Module):
    """A linear layer, and a loss."""

    def __init__(self, loss):
        super().__init__()
        self.linear, self.loss = nn.Linear(32, 32), loss

    def forward(self, x, target):
        return self.loss(self.linear(x), target)


def masked(h, y):
    kept = (y > 0).float().mean(-1)
    return (F.huber_loss(h, y, reduction="none").mean(-1) * kept).sum() / kept.sum()


def divergence(h, y):
    return F.kl_div(F.log_softmax(h, -1), F.softmax(y, -1), reduction="batchmean")


def weighted(h, y):
    return F.l1_loss(h, y) + 0.1 * h.logsumexp(-1).square().sum() / h.shape[0]


def entropy(h, y):
    return -(F.softmax(h, -1) * F.log_softmax(h, -1)).sum(-1).mean() + 0 * y.sum()


def probability(h, y):
    return F.binary_cross_entropy(h.sigmoid(), y.sigmoid())


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.binary_cross_entropy_with_logits, divergence, entropy, masked,
     probability, weighted],
)  # fmt: skip
def test_a_loss_has_the_value_that_it_was_written_with(loss):
    torch.manual_seed(0)
    model = amprewrite.unit_scale(
        Tail(loss), (torch.randn(64, 32), torch.randn(64, 32))
    )
    for batch in (64, 96):
        x, target = torch.randn(2, batch, 32)
        h = x @ model.linear.weight.T * 32**-0.5
        torch.testing.assert_close(model(x, target), loss(h, target))
    cosines = check_gradient_validity(model, (x, target))
    assert all(math.isnan(c) or c > 0.9999 for c in cosines.values())


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, masked])
def test_the_gradient_of_a_mean_does_not_depend_on_the_batch(loss):
    torch.manual_seed(0)
    model = amprewrite.unit_scale(
        Tail(loss), (torch.randn(64, 32), torch.randn(64, 32))
    )
    nn.init.zeros_(model.linear.weight)  # errors do not depend on inputs
    for batch in (64, 1024):
        model.zero_grad()
        model(*torch.randn(2, batch, 32)).backward()
        assert 0.4 < model.linear.weight.grad.std() < 2.5


def test_terms_that_share_a_network_have_gradients_of_unit_scale():
    def both(h, y):
        return F.mse_loss(h, y) + 1e-3 * h.abs().mean()

    torch.manual_seed(0)
    args = torch.randn(256, 32), torch.randn(256, 32)
    model = amprewrite.unit_scale(Tail(both), args)
    nn.init.zeros_(model.linear.weight)
    model(*args).backward()
    assert 0.4 < model.linear.weight.grad.std() < 2.5


@pytest.mark.parametrize("hidden", ["add", "masked_fill"])
def test_a_mask_before_a_softmax_is_counted(hidden):
    mask = torch.ones(32, 32, dtype=torch.bool).tril()

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(16, 32)

        def forward(self, x):
            q, k = self.qk(x).chunk(2, -1)
            scores = q @ k.transpose(-1, -2) / 4
            if hidden == "add":
                scores = scores + torch.zeros(32, 32).masked_fill(~mask, -torch.inf)
            else:
                scores = scores.masked_fill(~mask, -1e9)
            return torch.softmax(scores, -1) @ torch.ones(32, 1)

    model = amprewrite.unit_scale(Masked(), (torch.randn(64, 32, 16),))
    wanted = masked_softmax(dict.fromkeys(range(1, 33), 1), 32)
    forward = [s.forward for s in model.scales if s.unit == "softmax"]
    assert pytest.approx(wanted.forward) in forward


class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        del ctx
        return -gradient


class Lost(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind, self.seen = nn.Linear(8, 8), kind, None

    def forward(self, x):
        y = self.linear(x)
        if self.kind == "function":
            y = Negated.apply(y)
        if self.kind == "hook":
            y.register_hook(torch.neg)
        if self.kind == "write":
            self.seen = y.detach()
        return checkpoint(torch.tanh, y, use_reentrant=False)


@pytest.mark.parametrize(
    ("kind", "match"),
    [("function", "drops the backward of Negated"), ("hook", "drops hooks")],
)
def test_a_backward_that_capture_loses_is_refused(kind, match):
    with pytest.raises(CaptureError, match=f"cannot be unit-scaled: export {match}"):
        amprewrite.unit_scale(Lost(kind), (torch.randn(4, 8),))


def test_a_write_that_capture_loses_is_warned_of():
    with pytest.warns(AmpWarning, match=r"does not write self\.seen"):
        amprewrite.unit_scale(Lost("write"), (torch.randn(4, 8),))
