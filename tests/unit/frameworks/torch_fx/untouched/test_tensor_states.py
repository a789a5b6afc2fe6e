"""Memory, gradients and hooks of tensors are put back."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.untouched.tensor_states import (
    TensorState,
    has_memory,
    has_state,
)


def other_memory(p: Any) -> None:
    p.data = torch.ones(3, 3)


def other_gradient(p: Any) -> None:
    p.grad = torch.ones(2)


def frozen(p: Any) -> None:
    p.requires_grad_(False)


def hooked(p: Any) -> None:
    p.register_hook(print)


def hooked_after(p: Any) -> None:
    p.register_post_accumulate_grad_hook(print)


def named(p: Any) -> None:
    p.note = "new"


def state(p: Any) -> Any:
    hooks = len(p._backward_hooks or ()), len(p._post_accumulate_grad_hooks or ())
    return p.data_ptr(), p.shape, p.grad, p.requires_grad, hooks, dict(vars(p))


@pytest.mark.parametrize("hooks", [0, 1])
@pytest.mark.parametrize(
    "change", [other_memory, other_gradient, frozen, hooked, hooked_after, named]
)
def test_a_change_is_put_back(change: Any, hooks: int) -> None:
    p = nn.Parameter(torch.zeros(2))
    for _ in range(hooks):
        p.register_hook(repr)
        p.register_post_accumulate_grad_hook(repr)
    before, recorded = state(p), TensorState(p)
    change(p)
    assert state(p) != before
    recorded.restore()
    assert state(p) == before


def test_tensors_without_memory_here_have_no_state() -> None:
    lazy: Any = nn.LazyLinear(2)
    assert not has_state(lazy.weight)
    assert not has_state(torch.eye(2).to_sparse())
    assert has_state(torch.ones(1))


def test_a_tensor_has_other_memory_once_its_data_are_set() -> None:
    p = nn.Parameter(torch.zeros(4))
    memory = p.untyped_storage()
    assert has_memory(p, memory)
    p.data.mul_(2)
    p.data = p.data[1:]
    assert has_memory(p, memory)
    p.data = torch.zeros(4)
    assert not has_memory(p, memory)
