"""Which gradients an optimizer has, whose they are, and whether they are finite."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_tensor,
)

from amprewrite.errors import OptimizerError
from amprewrite.training.torch import step_state
from tests.torch_group import group_of_one


def with_gradients(*held: Any):
    made = [nn.Parameter(torch.zeros_like(h).to_dense()) for h in held]
    for parameter, gradient in zip(made, held, strict=True):
        parameter.grad = gradient
    return made


def test_parameters_are_named_by_their_place():
    one, two, three = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    optimizer = torch.optim.SGD([{"params": [one, two]}, {"params": [three]}])
    names = [name for name, _ in step_state.parameters(optimizer)]
    assert names == [
        "parameter 0 of group 0",
        "parameter 1 of group 0",
        "parameter 0 of group 1",
    ]


def test_parameters_are_named_as_the_optimizer_was_told():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(list(model.named_parameters()))
    names = [name for name, _ in step_state.parameters(optimizer)]
    assert names == ["weight", "bias"]


def test_gradients_of_one_dtype_are_together():
    made = with_gradients(torch.ones(2), torch.ones(3).double(), torch.ones(4))
    made.append(nn.Parameter(torch.zeros(5)))
    found = step_state.by_kind(torch.optim.SGD(made))
    assert [[t.numel() for t in held] for held in found] == [[2, 4], [3]]
    assert found[0][0] is made[0].grad


def test_a_sparse_gradient_is_coalesced_and_its_values_are_written_in_place():
    indices = torch.tensor([[0, 0, 2]])
    values = torch.tensor([3e38, 3e38, 1.0])
    sparse = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=True)
    made = with_gradients(sparse)
    ((held,),) = step_state.by_kind(torch.optim.SGD(made))
    assert held.tolist() == [float("inf"), 1.0]
    held.fill_(7.0)
    assert made[0].grad is not None
    assert made[0].grad.to_dense().tolist() == [7.0, 0.0, 7.0, 0.0]


def test_float16_gradients_are_refused_as_by_torch():
    made = with_gradients(torch.ones(2).half())
    optimizer = torch.optim.SGD(made)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        step_state.by_kind(optimizer)
    assert step_state.by_kind(optimizer, half=True)


def test_the_first_gradient_that_is_not_finite_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    assert step_state.first_not_finite(optimizer, model) == ""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert step_state.first_not_finite(optimizer, model) == ""
    weight = model.get_parameter("1.weight")
    weight.grad = torch.full_like(weight, float("nan"))
    assert step_state.first_not_finite(optimizer, model) == "1.weight"
    assert step_state.first_not_finite(optimizer, None) == "parameter 2 of group 0"


def test_an_optimizer_of_other_parameters_is_refused():
    model = nn.Linear(2, 3)
    step_state.check_owner(torch.optim.SGD([model.weight]), model)
    other = nn.Linear(2, 3)
    optimizer = torch.optim.SGD([model.weight, other.bias])
    with pytest.raises(OptimizerError, match=r"parameter 1 of group 0, of shape \(3,"):
        step_state.check_owner(optimizer, model)


def test_gradients_of_other_placements_are_looked_at_apart_and_whole_ones_first():
    with group_of_one():
        mesh = init_device_mesh("cpu", (1,))
        kinds = (Shard(0), None, Replicate(), Shard(0), None)
        made = [nn.Parameter(torch.zeros(2)) for _ in kinds]
        for parameter, kind in zip(made, kinds, strict=True):
            gradient = torch.ones(2)
            if kind is not None:
                parameter.data = distribute_tensor(parameter.data, mesh, [kind])
                gradient = distribute_tensor(gradient, mesh, [kind])
            parameter.grad = gradient
        found = step_state.by_kind(torch.optim.SGD(made))
        held = [[id(gradient) for gradient in group] for group in found]
        orders = ((1, 4), (0, 3), (2,))
        assert held == [[id(made[i].grad) for i in order] for order in orders]
