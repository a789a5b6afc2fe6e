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
