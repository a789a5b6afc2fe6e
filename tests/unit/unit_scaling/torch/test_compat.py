"""Private names of torch do what they are used for."""

import pytest

pytest.importorskip("torch")

import torch

from amprewrite.frameworks.torch_fx.compat.operators import in_transform


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_transform_is_noticed_inside_of_it():
    inside = []

    def record(x):
        inside.append(in_transform())
        return x.sum()

    x = torch.ones(2)
    torch.func.grad(record)(x)
    torch.func.vmap(record)(x[None])
    torch.func.jvp(record, (x,), (x,))
    assert inside == [True, True, True]
    assert not in_transform()
