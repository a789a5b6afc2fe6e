"""A whole model as one graph: exported, or as it was given."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.dispatch import planner
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.capture.cast_intent import CHOSEN
from amprewrite.frameworks.torch_fx.capture.one_graph import capture, capture_for
from amprewrite.frameworks.torch_fx.capture.program import is_program
from tests.torch_programs import Program

X = torch.ones(2, 4)


def programs() -> dict[str, Any]:
    model = nn.Linear(4, 4).eval()
    exported = torch.export.export(model, (X,), strict=False)
    graph = exported.module(check_guards=False)
    traced = torch.fx.symbolic_trace(model)
    return {"model": model, "exported": exported, "graph": graph, "traced": traced}


@pytest.mark.parametrize(
    ("kind", "given", "how"),
    [
        ("model", False, "captured by torch.export"),
        ("exported", True, "given as an exported program"),
        ("graph", True, "given as an ATen-level graph"),
        ("traced", False, "captured by torch.export"),
    ],
)
def test_what_is_captured_already_is_opened(kind: str, given: Any, how: str) -> None:
    model = programs()[kind]
    assert is_program(model) is given
    captured = capture(model, (X,), None)
    assert captured.how == how
    assert torch.equal(captured.module(X), output_of(model))


def output_of(model: Any) -> Any:
    return (model if isinstance(model, nn.Module) else model.module())(X)


@pytest.mark.parametrize("kind", ["exported", "graph"])
def test_shapes_of_what_is_captured_already_are_fixed(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="was captured before"):
        capture(programs()[kind], (X,), None, dynamic_shapes={"input": None})


@pytest.mark.parametrize(("low", "told"), [("bfloat16", True), ("", False)])
def test_casts_that_the_model_chose_are_told_from_others(low: str, told: Any) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x.half().float().to(m.a.weight.dtype))

    model = Program(forward, a=nn.Linear(4, 4)).eval()
    request = Request(planner("bf16"), (X,), None, low=low)
    module = capture_for(model, model, request).module
    assert any(CHOSEN in node.meta for node in module.graph.nodes) is told
