"""Steps of the optimizers of torch, against learning rates by hand."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling import optim
from amprewrite.unit_scaling.optim import SGD, Adam, AdamW, Parameter, parameter_groups


def parameters():
    torch.manual_seed(0)
    return {
        "w": Parameter(torch.randn(3, 16), "weight"),
        "deep": Parameter(torch.randn(3, 16), "weight", depth=4),
        "b": Parameter(torch.randn(3), "bias"),
        "out": Parameter(torch.randn(5, 16), "output"),
    }


RATES = {"w": 1 / 4, "deep": 1 / 8, "b": 1.0, "out": 1.0}


def stepped(optimizer, held, steps=3):
    for step in range(steps):
        for p in held.values():
            p.grad = torch.cos(p.detach() * (step + 1))
        optimizer.step()
    return {name: p.detach().clone() for name, p in held.items()}


@pytest.mark.parametrize(("cls", "base"), [(Adam, "Adam"), (SGD, "SGD")])
def test_each_parameter_learns_at_its_rate(cls, base):
    held = parameters()
    found = stepped(cls(held.values(), lr=0.1), held)
    plain = parameters()
    groups = [{"params": [p], "lr": 0.1 * RATES[n]} for n, p in plain.items()]
    wanted = stepped(getattr(torch.optim, base)(groups), plain)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cls", [AdamW, SGD])
def test_independent_decay_takes_the_same_share_of_every_weight(cls):
    held = parameters()
    before = {name: p.detach().clone() for name, p in held.items()}
    optimizer = cls(held.items(), lr=0.1, weight_decay=0.01)
    for p in held.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in held.items():
        torch.testing.assert_close(p.detach(), before[name] * 0.99)


def test_decay_with_the_learning_rate():
    held = parameters()
    before = held["w"].detach().clone()
    optimizer = AdamW(
        held.values(), lr=0.1, weight_decay=0.5, independent_weight_decay=False
    )
    for p in held.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(held["w"].detach(), before * (1 - 0.1 / 4 * 0.5))


def test_sgd_with_a_readout_of_unit_scale():
    held = parameters()
    groups = parameter_groups(
        held.values(), 0.1, "sgd", readout_constraint="to_output_scale"
    )
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in held.items()}
    assert found == pytest.approx({"w": 0.4, "deep": 0.2, "b": 0.3, "out": 0.1})


def test_groups_keep_their_own_settings():
    held = parameters()
    given = [
        {"params": [held["w"], held["b"]], "weight_decay": 0.2, "betas": (0.8, 0.9)},
        {"params": held["out"], "lr": 0.5},
    ]
    groups = parameter_groups(given, 0.1, weight_decay=0.4)
    assert [g["lr"] for g in groups] == pytest.approx([0.1 / 4, 0.1, 0.5])
    assert [g["weight_decay"] for g in groups] == pytest.approx([8.0, 2.0, 0.8])
    assert groups[1]["betas"] == (0.8, 0.9)
    assert len(AdamW(groups_of(held), lr=0.1).param_groups) == 3


def groups_of(held):
    return [{"params": list(held.values())}]


def test_mistakes():
    plain = torch.nn.Linear(2, 3)
    with pytest.raises(UnitScalingError, match=r"weight has no mup_type; make it"):
        AdamW(plain.named_parameters())
    with pytest.raises(UnitScalingError, match=r"parameter 0 of group 0, of shape \(3"):
        Adam(plain.parameters())


def test_the_public_module():
    assert optim.AdamW is AdamW
    assert optim.Parameter is Parameter
