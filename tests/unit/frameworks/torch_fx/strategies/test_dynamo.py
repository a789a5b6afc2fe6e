"""What takes over from export, and what it does not take."""

from dataclasses import replace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.dispatch import planner, processor_of
from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo
from amprewrite.policy import load_policy
from tests.torch_programs import Program

X = torch.ones(2, 4)
CAUSE = CaptureError("export says no")


def subject(forward: Any, **fields: Any) -> Conversion:
    model = Program(forward, a=nn.Linear(4, 4)).eval()
    return Conversion(model, Request(planner("bf16"), **{"args": (X,), **fields}))


def branches(m: Any, x: Any) -> Any:
    return m.a(x) if x.sum() > 0 else x


def test_without_a_cause_it_is_captured_when_it_is_called() -> None:
    program = dynamo(subject(branches, args=None), None)
    assert program.plans == ()
    program(X)
    assert program.plan.captured == "captured by torch.compile (dynamo), 2 graphs"


def test_with_a_cause_it_is_called_at_once_and_says_why() -> None:
    program = dynamo(subject(branches), CAUSE)
    assert program.plan.captured.endswith("(dynamo): export says no, 2 graphs")


def test_what_dynamo_cannot_capture_either_says_both_reasons() -> None:
    def forward(m: Any, x: Any) -> Any:
        if torch.compiler.is_compiling():
            raise RuntimeError("no such way")
        return m.a(x)

    with pytest.raises(CaptureError, match="says no; dynamo cannot capture it either"):
        dynamo(subject(forward), CAUSE)


def test_a_model_that_fails_by_itself_says_so() -> None:
    with pytest.raises(CaptureError, match="itself fails on these arguments"):
        dynamo(subject(lambda m, x: m.a(x[:, :3])), CAUSE)


def test_what_needs_one_graph_is_refused_with_the_cause() -> None:
    plan = amprewrite.inspect(nn.Linear(4, 4).eval(), args=(X,))
    promotes = processor_of(load_policy("promote"))
    with pytest.raises(CaptureError, match="says no; plan= needs one graph") as caught:
        dynamo(subject(branches, plan=plan, processor=promotes), CAUSE)
    assert caught.value.__cause__ is CAUSE
    with pytest.raises(CaptureError) as caught:
        dynamo(subject(branches, processor=promotes), CAUSE)
    assert caught.value is CAUSE
    with pytest.raises(UnsupportedError, match="tolerance needs the model as one"):
        dynamo(subject(branches, budget=cast("Any", object())), CAUSE)
    exported = torch.export.export(nn.Linear(4, 4), (X,), strict=False)
    with pytest.raises(CaptureError) as caught:
        dynamo(replace(subject(branches), model=exported), CAUSE)
    assert caught.value is CAUSE
