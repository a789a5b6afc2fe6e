"""Every private name of torch that training uses."""

import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_tensor,
)

from amprewrite.training.torch import _compat
from tests.torch_group import group_of_one

FUNCTIONS = [
    name
    for name, found in vars(_compat).items()
    if inspect.isfunction(found) and found.__module__ == _compat.__name__
]


def parameter(*gradient: float):
    made = torch.nn.Parameter(torch.zeros(len(gradient)))
    made.grad = torch.tensor(gradient)
    return made


def test_every_function_has_a_test():
    text = Path(__file__).read_text("utf-8")
    assert not [name for name in FUNCTIONS if f"_compat.{name}(" not in text]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_gradients_are_unscaled_and_looked_at(bad: float):
    held = [torch.tensor([2.0, -4.0]), torch.tensor([6.0])]
    found = torch.zeros(())
    _compat.unscale(held, torch.tensor(0.5), found)
    assert [t.tolist() for t in held] == [[1.0, -2.0], [3.0]]
    assert found.item() == 0
    _compat.unscale([*held, torch.tensor([bad])], torch.tensor(1.0), found)
    assert found.item() == 1


def test_numbers_are_those_of_the_tensor():
    assert _compat.numbers(torch.tensor([1.0, 2.5])) == [1.0, 2.5]


def test_groups_and_step_are_the_optimizers():
    weight = parameter(1.0)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    assert _compat.groups(optimizer)[0]["params"] == [weight]
    _compat.step(optimizer)()
    assert weight.item() == -0.5


def test_fused_optimizers_take_the_scale():
    assert _compat.takes_scale(torch.optim.Adam([parameter(1.0)], fused=True))
    assert not _compat.takes_scale(torch.optim.Adam([parameter(1.0)]))


@pytest.mark.parametrize(("found", "moved"), [(0.0, -0.25), (1.0, 0.0)])
def test_a_fused_step_divides_and_skips(found: float, moved: float):
    weight = parameter(8.0)
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=True)
    scale, flag = torch.tensor(16.0), torch.tensor(found)
    _compat.step_with_scale(optimizer, scale, flag, optimizer.step)
    assert weight.item() == moved
    assert not hasattr(optimizer, "grad_scale")


def test_a_scale_of_the_user_is_divided_by_as_well():
    weight = parameter(8.0)
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=True)
    optimizer.grad_scale = torch.tensor(2.0)
    one, none = torch.tensor(4.0), torch.tensor(0.0)
    _compat.step_with_scale(optimizer, one, none, optimizer.step)
    assert weight.item() == -0.5


def test_the_placement_of_a_spread_tensor_and_all_of_it():
    with group_of_one():
        mesh = init_device_mesh("cpu", (1,))
        spread = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        assert _compat.placement(spread) == (mesh, (Shard(0),))
        found = _compat.whole(torch.isfinite(spread).all())
        assert _compat.placement(found) is None
        assert bool(found)
    plain = torch.ones(4)
    assert _compat.placement(plain) is None
    assert _compat.whole(plain) is plain


def test_a_part_of_a_spread_tensor_is_written_and_spread_again():
    with group_of_one():
        mesh = init_device_mesh("cpu", (1,))
        spread = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
        with torch.no_grad():
            _compat.local(spread).fill_(3)
            again = _compat.spread_as(torch.full((4, 2), 2.0), spread)
        assert bool((_compat.whole(spread) == 3).all())
        assert _compat.placement(again) == _compat.placement(spread)
        assert again.shape == spread.shape
        assert _compat.part(spread) == (0,)
        copied = distribute_tensor(torch.ones(4), mesh, [Replicate()])
        assert _compat.part(copied) == ()
    plain = torch.ones(4)
    assert _compat.local(plain) is plain
    assert _compat.spread_as(plain, torch.ones(4)) is plain
    assert _compat.part(plain) == ()


def test_a_twin_has_the_state_on_other_parameters_and_no_hooks():
    weight, other = parameter(1.0), parameter(1.0)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5)
    optimizer.step()
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("the hook of the first"))
    twin = _compat.twin_of(optimizer, {id(weight): other})
    _compat.bare_step(twin)
    assert (weight.item(), other.item()) == (-0.5, -0.75)
    assert optimizer.state[weight]["momentum_buffer"].item() == 1.0
