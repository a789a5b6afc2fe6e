"""Output structures that keep torch.Size."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree


def test_sizes_come_back_as_sizes_and_the_rest_as_it_was() -> None:
    given = {"a": (1, torch.Size([2, 3])), "b": [torch.Size([]), (4, 5), None]}
    leaves, spec = pytree.tree_flatten(given)
    plain = pytree.tree_unflatten(leaves, spec)
    assert type(plain["a"][1]) is tuple  # else this module is needed no more
    made = pytree.tree_unflatten(leaves, pytrees.keeping_sizes(spec))
    assert made == given
    assert [type(made["a"][1]), *map(type, made["b"])] == [
        *(torch.Size, torch.Size, tuple, type(None)),
    ]


def test_no_output_holds_the_stand_in() -> None:
    with pytest.raises(TypeError, match="structures alone"):
        pytree.tree_flatten(pytrees.Sizes())
