"""Tensors and submodules of modules, in the dicts of torch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.compat import module_parts


def test_modules_and_hidden_buffers_are_listed() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("seen", torch.ones(1))
    model.register_buffer("hidden", torch.ones(1), persistent=False)
    assert module_parts.hidden_buffers(model) == {"hidden"}
    assert list(module_parts.children(model)) == ["0"]
    assert [path for path, _ in module_parts.modules_by_path(model)] == ["", "0"]


def test_tensors_of_a_module_alone_are_at_hand() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    assert module_parts.buffers(model) == module_parts.parameters(model) == {}
    assert list(module_parts.parameters(model[0])) == ["weight", "bias"]
    assert "running_mean" in module_parts.buffers(model[0])


def test_state_is_shared() -> None:
    model, twin = nn.Sequential(nn.Linear(2, 2)), nn.Module()
    module_parts.share_state(twin, model)
    assert twin.get_parameter("0.weight") is model[0].weight
    model.register_buffer("late", torch.ones(1))
    assert "late" in dict(twin.named_buffers())


def test_tensors_are_shared_by_their_dicts() -> None:
    module, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    module_parts.share_tensors(module, other)
    other.weight = nn.Parameter(torch.zeros(2))
    assert module.weight is other.weight
    assert module.running_mean is other.running_mean


def test_tensors_of_all_parts_are_shared_by_their_dicts() -> None:
    module, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    module_parts.share_all_tensors(module, other)
    other[0].weight = nn.Parameter(torch.zeros(2, 2))
    assert module[0].weight is other[0].weight


def test_the_list_of_a_recurrent_layers_weights_is_renewed() -> None:
    layer: Any = nn.LSTM(2, 2)
    layer._parameters["weight_ih_l0"] = nn.Parameter(torch.zeros(8, 2))
    module_parts.renew_flat_weights(layer)
    assert layer._flat_weights[0] is layer.weight_ih_l0
    module_parts.renew_flat_weights(nn.Linear(2, 2))


def test_attributes_are_the_very_dict() -> None:
    module = nn.Linear(2, 2)
    module_parts.attributes_of(module)["scale"] = 2.0
    assert module.scale == 2.0


def test_a_model_is_called_without_the_call_of_its_class() -> None:
    class Doubled(nn.Linear):
        registered = 0

        def __init_subclass__(cls, **options: object) -> None:
            Doubled.registered += 1

        def __call__(self, *args: Any) -> Any:
            return 2 * super().__call__(*args)

    model, x = Doubled(2, 2), torch.ones(1, 2)
    plain = module_parts.called_plainly(model)
    assert torch.equal(2 * plain(x), model(x))
    assert vars(plain) is vars(model)
    assert type(plain).__qualname__ == Doubled.__qualname__
    assert Doubled.registered == 0
    for other in (nn.Linear(2, 2), torch.fx.symbolic_trace(nn.Linear(2, 2))):
        assert module_parts.called_plainly(other) is other


def test_other_tensors_are_in_place_of_a_models_under_all_names() -> None:
    model: Any = nn.Module()
    model.a = nn.Linear(2, 2)
    model.b = model.a
    model.register_buffer("x", torch.ones(2))
    before = dict(model.named_parameters()), model.x

    def double(_: str, held: Any, kind: type[Any]) -> Any:
        twin = held.detach() * 2
        return nn.Parameter(twin) if kind is nn.Parameter else twin

    def stop() -> None:
        with module_parts.in_place(model, double):
            assert torch.equal(model.b.weight, 2 * before[0]["a.weight"])
            assert model.x is not before[1]
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert model.a.weight is before[0]["a.weight"]
    assert model.x is before[1]
