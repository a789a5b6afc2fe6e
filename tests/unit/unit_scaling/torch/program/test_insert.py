"""Whole programs of torch whose ops no longer fit the rules one by one."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name

import amprewrite
from amprewrite.unit_scaling import check_gradient_validity

D = 32


class Recurrent(nn.Module):
    """A gated recurrent unit, written out, from a state that the model makes."""

    def __init__(self):
        super().__init__()
        self.read, self.keep = nn.Linear(8, 3 * D), nn.Linear(D, 3 * D)

    def forward(self, steps):
        h = steps.new_zeros(steps.shape[0], D)
        for x in steps.unbind(1):
            (ar, az, an), (br, bz, bn) = (
                z.chunk(3, -1) for z in (self.read(x), self.keep(h))
            )
            r, z = torch.sigmoid(ar + br), torch.sigmoid(az + bz)
            h = (1 - z) * torch.tanh(an + r * bn) + z * h
        return h


class Kernel(nn.Module):
    """A recurrent kernel: one op with several weights."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(16, D, batch_first=True), nn.Linear(D, 4)

    def forward(self, steps):
        return self.last(self.lstm(steps)[0][:, -1])


class Noisy(nn.Module):
    """Draws and steps: no gradient passes them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        h = self.first(x)
        h = h + torch.randn_like(h) + (torch.round(h) - h).detach() + torch.floor(h)
        return self.last(h)


class Losses(nn.Module):
    """A total beside its terms, as models return them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))
        self.one, self.two = nn.Linear(D, 4), nn.Linear(D, 1)

    def forward(self, x, y, t):
        h = self.body(x)
        one = F.cross_entropy(self.one(h).flatten(0, 1), y.flatten())
        two = F.smooth_l1_loss(self.two(h).squeeze(-1), t)
        return {"loss": one + 0.5 * two, "one": one, "two": two, "h": h}


def scaled(model, *args):
    torch.manual_seed(0)
    made = amprewrite.unit_scale(model(), args)
    cosines = check_gradient_validity(made, args)
    assert all(cosine > 0.9999 for cosine in cosines.values())
    return made


def test_a_recurrence_neither_grows_nor_fades():
    h = scaled(Recurrent, torch.randn(64, 6, 8))(torch.randn(64, 6, 8))
    assert 0.4 < h.std() < 1


def test_the_weights_of_a_kernel_have_their_fan_in():
    model = scaled(Kernel, torch.randn(64, 6, 16))
    found = {s.value: s.forward for s in model.scales if s.unit == "lstm"}
    assert found["lstm_weight_ih_l0"] == 16**-0.5
    assert found["lstm_weight_hh_l0"] == D**-0.5
    assert not model.lstm.bias_ih_l0.any()
    assert 0.5 < model(torch.randn(64, 6, 16)).std() < 2


def test_draws_and_steps_have_no_factor():
    plan = scaled(Noisy, torch.randn(64, D)).scales
    assert not {"randn_like", "round", "floor"} & plan.rules.keys()


def test_losses_that_are_returned_together_have_gradients_of_unit_scale():
    def draw(batch):
        targets = torch.randint(4, (batch, 16)), torch.randn(batch, 16)
        return torch.randn(batch, 16, D), *targets

    model = scaled(Losses, *draw(16))
    for name, batch in (("loss", 16), ("loss", 64), ("one", 16)):
        model.zero_grad()
        model(*draw(batch))[name].backward()
        assert 0.2 < model.body[0].weight.grad.std() < 5, name
