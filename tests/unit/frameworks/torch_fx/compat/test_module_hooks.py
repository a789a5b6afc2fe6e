"""Hooks of modules."""

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
    assert list(module_hooks.forward_hooks(other)["_forward_hooks"]) == [after.id]
    assert module_hooks.call_hooks(other) == keys
    assert not other(torch.ones(1, 2)).any()


def test_hooks_on_loads_can_be_changed() -> None:
    module = nn.Linear(2, 2)
    handle = module.register_load_state_dict_post_hook(lambda *_: None)
    assert list(module_hooks.load_hooks(module)) == [handle.id]


def test_hooks_on_gradients_are_counted() -> None:
    model = nn.Linear(2, 2)
    assert module_hooks.backward_hooks(model) == 0
    model.register_full_backward_hook(lambda *_: None)
    model.register_full_backward_pre_hook(lambda *_: None)
    assert module_hooks.backward_hooks(model) == 2


def test_hooks_for_all_modules_are_seen() -> None:
    assert not module_hooks.are_for_all_modules()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert module_hooks.are_for_all_modules()
    handle.remove()
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    assert module_hooks.are_for_all_modules()
    handle.remove()

    def ours(*_: object) -> None: ...

    ours.__module__ = "amprewrite.frameworks.torch_fx.watching"
    handle = nn.modules.module.register_module_forward_hook(ours)
    assert not module_hooks.are_for_all_modules()
    handle.remove()


def test_torchs_own_hooks_for_all_modules_are_taken_out_for_a_while() -> None:
    registry: Any = nn.modules.module
    table = registry._global_forward_hooks

    def torchs(*_: object) -> None: ...

    def users(*_: object) -> None: ...

    torchs.__module__ = "torch.utils.module_tracker"
    handles = [registry.register_module_forward_hook(h) for h in (users, torchs)]
    before = dict(table)
    with module_hooks.without_trackers():
        assert [*table.values()] == [users]
        handles.append(registry.register_module_forward_hook(torchs))
        handles[0].remove()
    assert [*table] == [handles[1].id, handles[2].id]
    assert before.keys() - table.keys() == {handles[0].id}
    for handle in handles:
        handle.remove()
    assert not table
