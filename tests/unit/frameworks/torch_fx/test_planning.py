from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.dispatch import planner
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.assemble import (
    SLOW_FLOAT16,
    plan_for,
)
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.rewrite.read import read

X = torch.ones(2, 4)


def plan(policy: str, notes: tuple[str, ...] = (), **fields: Any) -> Any:
    model = nn.Linear(4, 4).eval()
    conversion = Conversion(model, Request(planner(policy), (X,), **fields))
    captured = replace(capture(model, (X,), None), notes=notes)
    return plan_for(conversion, captured, read(captured.module))


def test_a_plan_knows_its_mode_and_how_it_was_captured() -> None:
    found = plan("bf16")
    assert (found.mode, found.training) == ("eval", False)
    assert found.captured == "captured by torch.export"
    assert plan("bf16", training=True).training


@pytest.mark.parametrize(
    ("policy", "device", "warnings"),
    [
        ("fp16", "", ("a note", SLOW_FLOAT16)),
        ("fp16", "cuda", ("a note",)),
        ("bf16", "", ("a note",)),
    ],
)
def test_notes_of_the_capture_come_before_the_warning_of_slow_kernels(
    policy: str, device: str, warnings: tuple[str, ...]
) -> None:
    assert plan(policy, ("a note",), device=device).warnings == warnings
