"""Low copies of weights, renewed after writes."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.fx import Graph

from amprewrite.frameworks.torch_fx.module.low_copies import LowCopies


def owner_with_copies() -> tuple[nn.Module, LowCopies]:
    owner = nn.Linear(4, 4)
    owner.register_buffer("low", owner.weight.detach().bfloat16())
    recipe = Graph()
    held = recipe.get_attr("weight")
    low = recipe.call_function(torch.ops.aten.to.dtype, (held, torch.bfloat16))
    recipe.output({"low": low})
    return owner, LowCopies(owner, recipe)


def is_renewed(owner: nn.Module) -> bool:
    return torch.equal(
        owner.get_buffer("low"), owner.get_parameter("weight").bfloat16()
    )


def test_copies_are_computed_again_after_a_write_alone() -> None:
    owner, copies = owner_with_copies()
    owner.get_buffer("low").zero_()
    copies.renew(owner)
    assert not owner.get_buffer("low").any()  # nobody wrote to the weight
    with torch.no_grad():
        owner.get_parameter("weight").mul_(2)
    copies.renew(owner)
    assert is_renewed(owner)
    owner.get_buffer("low").zero_()
    copies.outdate()
    copies.renew(owner)
    assert is_renewed(owner)


def stored(found: Any) -> Any:
    return pickle.loads(pickle.dumps(found))


@pytest.mark.parametrize("copied", [copy.deepcopy, stored])
def test_what_was_copied_computes_its_copies_anew(copied: Any) -> None:
    owner, copies = owner_with_copies()
    owner.get_buffer("low").zero_()
    twin = copied(copies)
    assert twin.sources == ("weight",)
    twin.renew(owner)
    assert is_renewed(owner)


def test_gradients_pass_through_the_copies_while_they_are_asked_for() -> None:
    owner, copies = owner_with_copies()
    low, weight = owner.get_buffer("low"), owner.get_parameter("weight")
    with copies.passing_gradients(owner):
        owner.get_buffer("low").sum().backward()
    assert owner.get_buffer("low") is low
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(4, 4))
    with torch.no_grad(), copies.passing_gradients(owner):
        assert owner.get_buffer("low") is low
    weight.requires_grad_(False)  # as torch
    with copies.passing_gradients(owner):
        assert owner.get_buffer("low") is low


def test_inside_of_a_transform_the_copies_are_those_of_its_weights() -> None:
    owner, copies = owner_with_copies()
    low = owner.get_buffer("low").clone()

    def run(weight: Any) -> Any:
        def call(module: nn.Module) -> Any:
            copies.renew(module)
            with copies.passing_gradients(module):
                return module.get_buffer("low").float().sum()

        kept: Any = owner._parameters
        before, kept["weight"] = kept["weight"], weight
        try:
            return call(owner)
        finally:
            kept["weight"] = before

    weights = torch.stack([torch.ones(4, 4), torch.zeros(4, 4)])
    assert torch.func.vmap(run)(weights).tolist() == [16, 0]
    assert torch.equal(torch.func.grad(run)(weights[0]), torch.ones(4, 4))
    assert torch.equal(owner.get_buffer("low"), low)
