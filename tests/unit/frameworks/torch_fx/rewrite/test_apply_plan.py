"""A plan is written, mended and checked in one step."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.frameworks.torch_fx.rewrite.write import rewrite
from tests.torch_programs import Program


def reading_of(function: Any) -> Any:
    model = Program(function, a=nn.Linear(8, 8)).eval()
    captured = capture(model, (torch.randn(4, 8),), {})
    return read(captured.module)


def plan_of(function: Any) -> Any:
    import amprewrite

    model = Program(function, a=nn.Linear(8, 8)).eval()
    return amprewrite.inspect(model, args=(torch.randn(4, 8),))


def test_the_plan_comes_back_with_what_was_mended() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        h[0].zero_()
        return h

    plan = plan_of(forward)
    assert rewrite(reading_of(forward), plan) == plan


def test_a_plan_of_another_program_is_refused() -> None:
    with pytest.raises(PlanMismatchError):
        rewrite(reading_of(lambda m, x: m.a(x)), plan_of(lambda m, x: m.a(x).exp()))
