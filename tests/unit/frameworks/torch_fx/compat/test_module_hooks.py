"""Hooks and tensors of modules."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_hooks


def test_forward_hooks_are_taken_and_set() -> None:
    module, other = nn.Linear(2, 2), nn.Linear(2, 2)
    before = module.register_forward_pre_hook(lambda *_: None)
    after = module.register_forward_hook(
        lambda *given: given[2].mul(0), always_call=True
    )
    keys = tuple(key for key, _ in module_hooks.named_call_hooks(module))
    assert module_hooks.call_hooks(module) == keys == (before.id, after.id)
    module_hooks.set_forward_hooks(other, module_hooks.take_forward_hooks(module))
    assert not module_hooks.call_hooks(module)
    assert module_hooks.call_hooks(other) == keys
    assert not other(torch.ones(1, 2)).any()


def test_hooks_on_loads_can_be_changed() -> None:
    module = nn.Linear(2, 2)
    handle = module.register_load_state_dict_post_hook(lambda *_: None)
    assert list(module_hooks.load_hooks(module)) == [handle.id]


def test_tensors_are_shared_by_their_dicts() -> None:
    module, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    module_hooks.share_tensors(module, other)
    other.weight = nn.Parameter(torch.zeros(2))
    assert module.weight is other.weight
    assert module.running_mean is other.running_mean


def test_the_list_of_a_recurrent_layers_weights_is_renewed() -> None:
    layer: Any = nn.LSTM(2, 2)
    layer._parameters["weight_ih_l0"] = nn.Parameter(torch.zeros(8, 2))
    module_hooks.renew_flat_weights(layer)
    assert layer._flat_weights[0] is layer.weight_ih_l0
    module_hooks.renew_flat_weights(nn.Linear(2, 2))
