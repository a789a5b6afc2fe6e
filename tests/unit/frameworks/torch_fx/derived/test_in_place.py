"""Models that are converted in place."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.dispatch import Asked
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.convert import convert_in_place
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.derived.in_place import restore_in_place
from amprewrite.policy import load_policy


def convert(model: nn.Module) -> None:
    asked = Asked(model, load_policy("bf16"), None, None, (), None)
    convert_in_place(model, asked.request(None))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def test_a_model_is_converted_and_made_plain_again() -> None:
    one, other, x = model(), model(), torch.randn(4, 8)
    before = {id(part): set(vars(part)) for part in one.modules()}
    calls: list[str] = []
    one.register_forward_hook(lambda *_: calls.append("model"))
    convert(one)
    found, expected = one(x), other(x)
    assert calls == ["model"]
    assert 1e-5 < (found - expected).norm() / expected.norm() < 2e-2
    torch.testing.assert_close(one[0](x), other[0](x), atol=0.05, rtol=0.05)
    assert not torch.equal(one[0](x), other[0](x))
    torch.testing.assert_close(
        one[1].running_mean, other[1].running_mean, atol=0.01, rtol=0.01
    )
    restore_in_place(one)
    assert [type(part) for part in one.modules()] == [type(p) for p in other.modules()]
    assert before == {id(part): set(vars(part)) for part in one.modules()}
    one.load_state_dict(other.state_dict())
    torch.testing.assert_close(one.eval()(x), other.eval()(x), rtol=0, atol=0)
    assert calls == ["model"] * 2


def test_it_can_be_converted_again() -> None:
    one, x = model(), torch.randn(4, 8)
    for _ in range(2):
        convert(one)
        one(x)
        programs = programs_of(one)
        assert programs is not None
        assert programs.plan.low == "bfloat16"
        restore_in_place(one)


def test_converted_parts_stay_converted() -> None:
    inner = amprewrite.convert(nn.Linear(8, 8))
    one = nn.Sequential(inner, nn.ReLU())
    convert(one)
    restore_in_place(one)
    assert programs_of(inner) is not None
    assert type(one) is nn.Sequential


def test_what_is_no_plain_model_is_refused() -> None:
    one = model()
    with pytest.raises(UnsupportedError, match="is not converted; want a model that"):
        restore_in_place(one)
    convert(one)
    with pytest.raises(UnsupportedError, match="is converted, scripted or a program"):
        convert(one[0])
