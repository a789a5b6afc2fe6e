"""A module that is captured at its first call."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import NotCapturedError, UnsupportedError
from tests.torch_programs import Program, relative_error


def test_a_module_captured_at_its_first_call_has_both_modes() -> None:
    x = torch.randn(4, 8)
    model = Program(
        lambda m, x: m.drop(m.a(x)), a=nn.Linear(8, 8), drop=nn.Dropout(0.5)
    )
    program = amprewrite.convert(model.eval())
    assert int((program(x) == 0).sum()) == 0
    program.train()
    assert not model.training
    assert int((program(x) == 0).sum()) > 0
    assert len(program.plans) == 2
    assert "torch.compile" in program.plans[0].captured


def test_a_module_for_training_has_the_parameters_of_the_model() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8)).train()
    program = amprewrite.convert(model)
    assert program.get_parameter("0.weight") is model[0].weight
    assert not program.eval().training
    assert model.training
    assert amprewrite.original(program) is model
    assert not model.training


def test_a_module_for_inference_runs_a_copy() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model)
    assert torch.equal(program.get_parameter("0.weight"), model[0].weight)
    assert program.get_parameter("0.weight") is not model[0].weight
    assert "captured at the first call" in repr(program)
    program(torch.randn(4, 8))
    assert "captured by torch.compile" in repr(program)


def test_weights_that_were_trained_are_cast_at_each_use() -> None:
    """However they are written to: old optimizers do it where torch does not count."""
    torch.compiler.reset()
    x = torch.randn(4, 8)
    model: Any = nn.Sequential(nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model)
    program(x)
    program.train()
    program.eval()
    program.get_parameter("0.weight").data.mul_(-2)
    twin = copy.deepcopy(model)
    twin[0].weight.data.mul_(-2)
    assert torch.equal(program(x), amprewrite.convert(twin, args=(x,))(x))


def test_a_copy_follows_a_write_that_torch_does_not_count() -> None:
    torch.compiler.reset()
    x = torch.randn(4, 8)
    model: Any = nn.Sequential(nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model)
    with torch.no_grad():
        program(x)
        for made in (model, program):
            made.get_parameter("0.weight").data.mul_(-2)
        assert torch.equal(program(x), amprewrite.convert(model, args=(x,))(x))


@pytest.mark.parametrize("hooked", [False, True])
def test_gradients_pass_through_low_copies_to_the_weights(*, hooked: bool) -> None:
    """Also from the full copies of stored weights, beside a hook on a part."""
    torch.compiler.reset()
    x = torch.randn(4, 8)
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    program = amprewrite.convert(model, args=(x,) if hooked else None)
    if hooked:
        program[1].register_forward_hook(lambda *_: None)
    for _ in range(2):  # it accumulates; with copies at hand
        for made in (model, program):
            made(x).square().sum().backward()
    for (name, one), (_, other) in zip(
        model.named_parameters(), program.named_parameters(), strict=True
    ):
        assert other.grad is not None, name
        assert other.grad.dtype == other.dtype
        assert relative_error(other.grad.float(), one.grad) < 2e-2, name


def test_there_is_no_plan_before_the_first_call() -> None:
    program = amprewrite.convert(nn.Linear(8, 8).eval())
    with pytest.raises(NotCapturedError, match="call it once, or convert with args"):
        _ = program.plan
    with pytest.raises(UnsupportedError, match="cannot be pickled"):
        pickle.dumps(program)
