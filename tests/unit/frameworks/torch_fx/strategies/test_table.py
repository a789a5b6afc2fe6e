"""Which strategy captures a model, and what passes it on to the next."""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.checkpoint import checkpoint

import amprewrite
from amprewrite.dispatch import planner, processor_of
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.strategies.table import STRATEGIES
from amprewrite.policy import load_policy
from tests.torch_programs import Program

X = torch.ones(2, 4)
MODEL = nn.Linear(4, 4)
EXPORTED = torch.export.export(MODEL, (X,), strict=False)
PROMOTES = processor_of(load_policy("promote"))


def subject(model: Any, args: Any, processor: Any = None) -> Conversion:
    request = Request(planner("bf16"), args, None, processor=processor)
    return Conversion(model, request)


def test_there_are_three_and_the_last_applies_to_every_model() -> None:
    assert [s.name for s in STRATEGIES] == ["export now", "export on call", "dynamo"]
    assert STRATEGIES[-1].applies(subject(MODEL, None))
    assert [bool(s.passes_on) for s in STRATEGIES] == [True, False, False]


@pytest.mark.parametrize(
    ("model", "args", "processor", "name"),
    [
        (MODEL, (X,), None, "export now"),
        (MODEL, (X,), PROMOTES, "export now"),
        (EXPORTED, None, None, "export now"),
        (EXPORTED, None, PROMOTES, "export now"),
        (MODEL, None, PROMOTES, "export on call"),
        (MODEL, None, None, "dynamo"),
        (EXPORTED.module(), None, None, "dynamo"),
    ],
)
def test_the_first_that_applies(
    model: Any, args: Any, processor: Any, name: str
) -> None:
    asked = subject(model, args, processor)
    assert next(s.name for s in STRATEGIES if s.applies(asked)) == name


def counts(m: Any, x: Any) -> Any:
    m.calls = m.calls + 1
    return m.a(x)


def seeds(m: Any, x: Any) -> Any:
    torch.manual_seed(0)
    return m.a(x)


def draws(m: Any, x: Any) -> Any:
    return m.a(x) * random.random()


def appends(m: Any, x: Any) -> Any:
    KEPT.append(1)
    return m.a(x)


def branches(m: Any, x: Any) -> Any:
    return m.a(x) if x.sum() > 0 else x


def checkpoints(m: Any, x: Any) -> Any:
    return checkpoint(m.a, x, use_reentrant=False)


def has_teacher(m: Any, x: Any) -> Any:
    return m.a(x) + m.teacher[0](x)


KEPT: list[Any] = []


def has_hook(m: Any, x: Any) -> Any:
    return m.a(x)


REASONS = [
    (branches, False, "cannot be captured by torch.export at "),
    (counts, False, "export leaves out the writes of forward to self.calls"),
    (appends, False, "export leaves out the writes of forward to KEPT"),
    (seeds, False, "export does not record that forward seeds"),
    (draws, False, "export keeps the numbers that forward draws by random"),
    (has_hook, False, "runs the hook test_every_reason_to_pass_a_model_on_is_said_in"),
    (has_teacher, True, "constants the weights of Linear, which is no submodule"),
    (checkpoints, True, "export removes activation checkpoints"),
]
"""One for each line of the table."""


@pytest.mark.parametrize(("forward", "training", "reason"), REASONS)
def test_every_reason_to_pass_a_model_on_is_said_in_its_plan(
    forward: Any, training: Any, reason: str
) -> None:
    assert len(STRATEGIES[0].passes_on) == len(REASONS)
    model: Any = Program(forward, a=nn.Linear(4, 4))
    model.calls = 0
    if forward is has_teacher:
        model.teacher = [nn.Linear(4, 4)]
    if forward is has_hook:
        model.a.register_forward_hook(lambda *given: KEPT.append(given))
    program = amprewrite.convert(model, args=(X,), training=training)
    assert program.plan.captured.startswith("captured by torch.compile (dynamo): ")
    assert reason in program.plan.captured


def test_what_is_dropped_from_training_is_captured_for_inference() -> None:
    model = Program(checkpoints, a=nn.Linear(4, 4)).eval()
    program = amprewrite.convert(model, args=(X,))
    assert program.plan.captured == "captured by torch.export"
