"""Fake tensors, by names of torch that are private."""

import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.compat import fake_tensors

FUNCTIONS = [
    name
    for name, found in vars(fake_tensors).items()
    if inspect.isfunction(found) and found.__module__ == fake_tensors.__name__
]


def fake(value: Any) -> Any:
    return fake_tensors.faked(fake_tensors.fake_mode(), value, value.dtype)


def test_every_function_has_a_test() -> None:
    text = Path(__file__).read_text("utf-8")
    assert not [name for name in FUNCTIONS if f"fake_tensors.{name}(" not in text]


def test_the_fake_mode_of_values_is_found() -> None:
    value = fake(torch.ones(4))
    assert fake_tensors.fake_mode_of([1, value]) is value.fake_mode
    assert fake_tensors.fake_mode_of([1, torch.ones(4)]) is None


def test_fake_tensors_are_given_another_dtype() -> None:
    value = fake(torch.randn(4, 8).t())
    low: Any = fake_tensors.retyped(value, torch.bfloat16)
    wanted = (torch.bfloat16, value.shape, value.stride())
    assert (low.dtype, low.shape, low.stride()) == wanted
    assert low.fake_mode is value.fake_mode


def test_fake_and_true_tensors_meet_in_a_mode() -> None:
    mode = fake_tensors.fake_mode()
    value = fake_tensors.faked(mode, torch.ones(4, 8), torch.bfloat16)
    with mode:
        made: Any = value @ torch.ones(8, 2, dtype=torch.bfloat16)
    assert (made.fake_mode, made.dtype, made.shape) == (mode, torch.bfloat16, (4, 2))
