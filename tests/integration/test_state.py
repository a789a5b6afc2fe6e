"""The tensors of a converted module: replaced, loaded, stored and written to."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the skip

import amprewrite  # noqa: E402
from tests.torch_programs import Program, in_full, relative_error  # noqa: E402

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative; a few layers stay under two of them."""


def normalised(m: Any, x: Any) -> Any:
    return m.n(m.a(x)) + m.a.weight.exp().mean()


def a_model() -> Any:
    return Program(normalised, a=nn.Linear(16, 16), n=nn.BatchNorm1d(16))


def other_than(model: Any) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1.5)
        other.n.running_mean.add_(1)
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_assigned_tensors_are_taken_in_the_dtypes_of_the_program(
    dtype: Any, *, training: bool
) -> None:
    model, x = a_model().train(training), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    dtypes = {name: held.dtype for name, held in program.state_dict().items()}
    other = other_than(model)
    state = {
        name: held.to(dtype) if held.is_floating_point() else held.clone()
        for name, held in other.state_dict().items()
    }
    program.load_state_dict(state, assign=True)
    assert {n: held.dtype for n, held in program.state_dict().items()} == dtypes
    assert relative_error(program(x), other(x)) < 2 * ROUNDING


@pytest.mark.parametrize("captured", ["before", "after"])
def test_assigned_tensors_are_those_of_the_other_mode_too(captured: str) -> None:
    model, x = a_model().train(), torch.randn(8, 16)
    program = amprewrite.convert(model, args=(x,))
    if captured == "before":
        program.eval()(x)
        program.train()
    other = other_than(model)
    program.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    expected = in_full(other.eval(), x)
    assert relative_error(program.eval()(x), expected) < 2 * ROUNDING
    program.a.weight = nn.Parameter(torch.eye(16))
    other.a.weight = program.a.weight
    expected = in_full(other, x)
    assert relative_error(program(x), expected) < 2 * ROUNDING
    assert relative_error(copy.deepcopy(program)(x), expected) < 2 * ROUNDING
