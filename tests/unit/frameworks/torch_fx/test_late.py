"""Captures at the first call, once for each signature."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from amprewrite.frameworks.torch_fx.late import late_runner, signature_key
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
