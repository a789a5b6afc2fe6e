"""The state of a converted model: names, low weights, copies kept beside weights."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module import state
from tests.torch_programs import LOW, Program, in_full, relative_error

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative."""


def x() -> Any:
    return torch.randn(4, 8)


def converted(function: Any, **parts: Any) -> tuple[Any, Any]:
    model = Program(function, **parts).eval()
    return model, amprewrite.convert(model, args=(x(),))


def test_a_low_parameter_stays_a_parameter() -> None:
    held = nn.Parameter(torch.ones(3), requires_grad=False)
    low = state.lowered(held, LOW)
    assert isinstance(low, nn.Parameter)
    assert (low.dtype, low.requires_grad) == (LOW, False)
    assert not isinstance(state.lowered(torch.ones(3), LOW), nn.Parameter)


def test_a_tensor_is_found_by_its_dotted_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert state.attribute(model, "0.weight") is model[0].weight
    with pytest.raises(TypeError, match="0 is a Linear, not a tensor"):
        state.attribute(model, "0")


def test_the_state_is_mirrored_with_shared_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)))
    model[0].register_buffer("hidden", torch.ones(1), persistent=False)
    target = nn.Module()
    state.mirror_state(target, model, {})
    assert list(target.state_dict()) == list(model.state_dict())
    assert target.get_parameter("0.weight") is model[0].weight
    assert target.get_buffer("0.hidden") is model[0].hidden


def test_low_tensors_take_the_place_of_full_ones() -> None:
    model = nn.Linear(2, 2)
    low = state.lowered(model.weight, LOW)
    target = nn.Module()
    state.mirror_state(target, model, {id(model.weight): low})
    assert target.get_parameter("weight") is low
    assert target.get_parameter("bias") is model.bias


def test_a_weight_read_in_both_precisions_has_no_low_copy() -> None:
    model: Any = Program(
        lambda m, x: m.a(x) + m.a.weight.exp(), a=nn.Linear(8, 8)
    ).eval()
    program = amprewrite.convert(model, args=(torch.randn(8, 8),))
    assert not [name for name, _ in program.named_buffers()]
    assert list(program.state_dict()) == list(model.state_dict())
    assert torch.equal(program.get_parameter("a.weight"), model.a.weight)


def test_a_copy_is_computed_once() -> None:
    """Of a model that mixes dtypes itself, which the policy promotes."""

    def forward(m: Any, x: Any) -> Any:
        return x @ m.w, m.w.sum()

    model = Program(forward, w=nn.Parameter(torch.randn(8, 9).half())).eval()
    value = x()
    program = amprewrite.convert(model, "promote", args=(value,))
    exact = value @ model.get_parameter("w").float()
    assert torch.equal(program(value)[0], exact)
    copies = [b for _, b in program.rewritten.named_buffers()]
    assert [b.dtype for b in copies] == [torch.float32]
    assert not list(program.named_buffers()), "a copy is none of the model's"
    assert not [c for c in program.plan.runtime_casts if c.is_weight]


def test_constants_of_the_code_are_kept_and_not_saved() -> None:
    model, program = converted(
        lambda m, x: m.a(x) * torch.tensor([2.0] * 8), a=nn.Linear(8, 8)
    )
    value = x()
    assert list(program.state_dict()) == list(model.state_dict())
    assert relative_error(in_full(program, value), in_full(model, value)) < 2 * ROUNDING


def test_a_module_and_an_attribute_may_have_one_name() -> None:
    """``_modules`` is asked, not the attributes."""
    model = nn.Module()
    model.add_module("training_", nn.Linear(2, 2))
    target = nn.Module()
    state.mirror_state(target, model, {})
    assert list(target.state_dict()) == ["training_.weight", "training_.bias"]


def test_weights_are_not_trained_by_accident() -> None:
    model, program = converted(lambda m, x: m.a(x), a=nn.Linear(8, 8))
    before = model.a.weight.detach().clone()
    with torch.no_grad():
        program.get_parameter("a.weight").zero_()
    assert torch.equal(model.a.weight, before)


def test_a_constant_without_values_is_refused():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.layer(x * torch.tensor([1.0, 2.0, 3.0], device=x.device))

    with torch.device("meta"):
        model, x = Scaled().train(), torch.empty(2, 3)
    with pytest.raises(UnsupportedError, match=r"constant of shape \(3,\).*no values"):
        amprewrite.convert(model, args=(x,))
    late = amprewrite.convert(model)
    late.to_empty(device="cpu")
    late.load_state_dict(Scaled().state_dict())
    assert late(torch.ones(2, 3)).isfinite().all()
