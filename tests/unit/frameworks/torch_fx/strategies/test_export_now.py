"""A program now, or why export cannot have it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.export import Dim

from amprewrite.dispatch import planner
from amprewrite.errors import CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.strategies.table import export_now
from tests.torch_programs import Program

X = torch.ones(2, 4)


def found(forward: Any, **fields: Any) -> Any:
    model = Program(forward, a=nn.Linear(4, 4)).eval()
    return export_now(Conversion(model, Request(planner("bf16"), (X,), **fields)))


def branches(m: Any, x: Any) -> Any:
    return m.a(x) if x.sum() > 0 else x


def seeds(m: Any, x: Any) -> Any:
    torch.manual_seed(0)
    return m.a(x)


def test_a_model_is_converted() -> None:
    assert isinstance(found(lambda m, x: m.a(x)), ConvertedModule)


@pytest.mark.parametrize("forward", [branches, seeds])
def test_what_cannot_be_captured_is_returned_with_what_becomes_of_shapes(
    forward: Any,
) -> None:
    shapes = {"args": ({0: Dim("rows")},)}
    plain, shaped = found(forward), found(forward, dynamic_shapes=shapes)
    assert isinstance(plain, CaptureError)
    assert isinstance(shaped, CaptureError)
    assert "dynamic_shapes" not in str(plain)
    assert str(shaped).endswith("dynamo captures once per signature")


def test_wrong_shapes_are_raised() -> None:
    with pytest.raises(CaptureError, match="dynamic_shapes= does not fit Program"):
        found(lambda m, x: m.a(x), dynamic_shapes={"args": ({7: Dim("rows")},)})
