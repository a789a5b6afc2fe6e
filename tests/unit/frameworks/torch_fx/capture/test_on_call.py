"""Captures at the first call, once for each signature."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning
from amprewrite.frameworks.torch_fx.capture.on_call import (
    MANY,
    late_runner,
    signature_key,
    state_key,
)
from amprewrite.plan import Plan


def test_a_signature_and_a_mode_are_captured_once() -> None:
    model = nn.Dropout()
    plans, calls = list[Plan](), list[tuple[int, ...]]()

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
        calls.append(tuple(args[0].shape))
        return amprewrite.convert(model, "promote", args=args, kwargs=kwargs)

    run = late_runner(model, capture, plans)
    for rows in (2, 3, 2):
        run(torch.ones(rows, 4))
    model.eval()
    assert torch.equal(run(torch.ones(2, 4)), torch.ones(2, 4))
    assert calls == [(2, 4), (3, 4), (2, 4)]
    assert len(plans) == len(calls)


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(2, 4),
        torch.ones(2, 3).double(),
        torch.ones(2, 3, 1),
        [torch.ones(2, 3)],
        {"x": torch.ones(2, 3)},
        1.0,
        True,
        None,
    ],
)
def test_signatures_differ(other: Any) -> None:
    x = torch.ones(2, 3)
    assert signature_key(((x,), {})) == signature_key(((x + 1,), {}))
    assert signature_key(((x,), {})) != signature_key(((other,), {}))


def test_equal_numbers_of_two_types_are_two_signatures() -> None:
    keys = {signature_key(value) for value in (1, 1.0, True, "1")}
    assert len(keys) == 4


def test_another_state_is_another_program() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    keys = [state_key(model)]
    model[0].eval()
    keys.append(state_key(model))
    model[1].weight = nn.Parameter(torch.ones(4, 4))
    keys.append(state_key(model))
    model.double()
    keys.append(state_key(model))
    assert len(set(keys)) == len(keys)
    with torch.no_grad():
        model[1].weight.mul_(2)
    assert state_key(model) == keys[-1]


def test_many_signatures_are_warned_of() -> None:
    model = nn.Identity()

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return amprewrite.convert(model, "off", args=args, kwargs=kwargs)

    run = late_runner(model, capture, [])
    for rows in range(1, MANY):
        run(torch.ones(rows))
    with pytest.warns(AmpWarning, match="dynamic_shapes="):
        run(torch.ones(MANY))


def test_the_signatures_that_were_used_last_are_kept() -> None:
    captured = list[int]()

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        captured.append(len(args[0]))
        return amprewrite.convert(nn.Identity(), "off", args=args, kwargs=kwargs)

    run = late_runner(nn.Identity(), capture, [])
    for rows in range(MANY - 1):
        run(torch.ones(rows))
    with pytest.warns(AmpWarning, match="longest ago"):
        run(torch.ones(MANY - 1))
    run(torch.ones(0))
    run(torch.ones(MANY))  # in the place of 1
    captured.clear()
    for rows in (0, 2, MANY, 1):
        run(torch.ones(rows))
    assert captured == [1]


def test_a_write_is_another_program_where_the_tensors_are_copies() -> None:
    model: Any = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)

    def capture(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return amprewrite.convert(model, "off", args=args, kwargs=kwargs)

    run = late_runner(model, capture, [], follows=False)
    before = run(x)
    assert torch.equal(run(x), before)
    with torch.no_grad():
        model.weight.zero_()
    assert torch.equal(run(x), model(x))
