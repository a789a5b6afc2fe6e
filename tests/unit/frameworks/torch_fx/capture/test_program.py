"""Programs that are captured already, as export gives them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.capture.program import open_program
from tests.torch_programs import Program


def x() -> Any:
    return torch.randn(4, 8)


def test_checks_of_traced_dtypes_are_dropped() -> None:
    model = Program(lambda m, x: m.a(x.to(torch.float32)), a=nn.Linear(8, 8)).eval()
    program = torch.export.export(model, (x(),), strict=False)
    module = open_program(program)
    names = [str(n.target) for n in module.graph.nodes]
    assert not [name for name in names if "_assert_tensor_metadata" in name]
    value = x()
    assert torch.equal(module(value), model(value))
