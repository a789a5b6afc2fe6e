from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.dispatch import planner
from amprewrite.errors import PlanMismatchError, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.assemble import assemble
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.rewrite.read import read_runnable

X = torch.ones(2, 4)


def a_model() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()


def assembled(model: Any, **fields: Any) -> Any:
    conversion = Conversion(model, Request(planner("bf16"), (X,), **fields))
    captured = capture(model, (X,), None)
    reading = read_runnable(captured, conversion.request, model)
    return assemble(conversion, captured, reading)


def test_the_plan_is_made_or_the_one_that_is_given() -> None:
    made = assembled(a_model()).plan
    assert made == amprewrite.inspect(a_model(), args=(X,))
    given = replace(made, policy_digest="another")
    assert assembled(a_model(), plan=given).plan == given
    other = amprewrite.inspect(nn.ReLU().eval(), args=(X,))
    with pytest.raises(PlanMismatchError):
        assembled(a_model(), plan=other)


def test_a_program_has_one_mode() -> None:
    program = assembled(a_model(), training=True)
    assert program.eval().plan.mode == "eval"
    with pytest.raises(UnsupportedError, match="was converted in eval mode"):
        program.train()
