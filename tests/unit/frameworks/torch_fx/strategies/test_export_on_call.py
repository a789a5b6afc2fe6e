"""A model that is exported when it is called."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.dispatch import planner, processor_of
from amprewrite.errors import CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.strategies.export_on_call import export_on_call
from amprewrite.frameworks.torch_fx.subject import Subject
from amprewrite.policy import load_policy
from tests.torch_programs import Program

POLICY = load_policy("promote")


def converted(forward: Any, **fields: Any) -> Any:
    model = Program(forward, a=nn.Linear(4, 4)).eval()
    request = Request(planner(POLICY), processor=processor_of(POLICY), **fields)
    return export_on_call(Subject.of(model, request))


def test_each_signature_is_exported_at_its_first_call() -> None:
    program = converted(lambda m, x: m.a(x).mean())
    assert program.plans == ()
    for rows, captured in ((2, 1), (2, 1), (3, 2)):
        program(torch.ones(rows, 4, dtype=torch.bfloat16))
        assert len(program.plans) == captured
    assert program.plan.captured.startswith("captured by torch.export")


def test_a_copy_is_captured_anew() -> None:
    program = converted(lambda m, x: m.a(x))
    x = torch.ones(2, 4)
    wanted = program(x)
    twin = copy.deepcopy(program)
    assert twin.plans == ()
    assert torch.equal(twin(x), wanted)


def test_what_export_cannot_capture_is_an_error_of_the_call() -> None:
    program = converted(lambda m, x: m.a(x) if x.sum() > 0 else x)
    with pytest.raises(CaptureError, match=r"cannot be captured by torch\.export at "):
        program(torch.ones(2, 4))


@pytest.mark.parametrize(("training", "hooked"), [(None, 1), (False, 0)])
def test_what_is_captured_to_be_trained_in_float16_is_watched(
    training: Any, hooked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amprewrite.frameworks.torch_fx.module import loss_scale_warning

    watched: list[Any] = []
    monkeypatch.setattr(loss_scale_warning, "watch", watched.append)
    converted(lambda m, x: m.a(x), low="float16", training=training)(torch.ones(2, 4))
    assert len(watched) == hooked
