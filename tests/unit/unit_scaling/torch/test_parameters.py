"""Types of parameters, through copies, pickles, files and conversions."""

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnitScalingError
from amprewrite.unit_scaling.optim import Parameter, assign_types


def model():
    made = nn.Sequential(
        nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 10)
    )
    made[3].weight = made[0].weight
    types: Any = {"*.bias": "bias", "2.weight": "norm", "0.weight": "output"}
    assign_types(made, types, depths={"1.*": 4}, default="weight")
    return made


def types_of(made):
    return {name: (p.mup_type, p.depth) for name, p in made.named_parameters()}


EXPECTED = {
    "0.weight": ("output", None),
    "1.weight": ("weight", 4),
    "1.bias": ("bias", 4),
    "2.weight": ("norm", None),
    "2.bias": ("bias", None),
    "3.bias": ("bias", None),
}


def test_types_are_assigned_and_ties_kept():
    made = model()
    assert types_of(made) == EXPECTED
    assert made[3].weight is made[0].weight


def test_copies_and_pickles_keep_types():
    made = model()
    made.get_parameter("1.bias").requires_grad_(False)
    unpickled = pickle.loads(pickle.dumps(made))
    for other in (copy.deepcopy(made), unpickled, copy.deepcopy(unpickled)):
        assert types_of(other) == EXPECTED
        assert other[3].weight is other[0].weight
        assert other[1].weight is not made[1].weight
        assert torch.equal(other[1].weight, made[1].weight)
        assert not other[1].bias.requires_grad


def test_states_are_plain():
    made, file = model(), io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert type(state["1.weight"]) is torch.Tensor
    made.load_state_dict(state)
    assert types_of(made.double()) == EXPECTED


def test_a_converted_model_trains_them():
    made, ids = model().train(), torch.tensor([1, 2])
    low = amprewrite.convert(made, args=(ids,))
    assert types_of(low) == EXPECTED
    low(ids).sum().backward()
    assert made[1].weight.grad is not None


def test_mistakes():
    with pytest.raises(UnitScalingError, match="found 'kernel'; want one of weight"):
        Parameter(torch.ones(2), "kernel")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnitScalingError, match=r"Linear\.bias has no mup_type; want"):
        assign_types(nn.Linear(2, 2), {"weight": "weight"})
    with pytest.raises(UnitScalingError, match=r"'\*\.norm' matches no parameter"):
        assign_types(nn.Linear(2, 2), {"*.norm": "norm"}, default="weight")
