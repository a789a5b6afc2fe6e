"""Ops that give a view or a copy, as dtypes and strides have it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from tests.torch_programs import Program


def targets(function: Any, *overrides: Any) -> list[str]:
    model = Program(function, a=nn.Linear(8, 8)).eval()
    args = (torch.randn(4, 8),)
    program = amprewrite.convert(model, args=args, overrides=overrides)
    nodes = program.rewritten.graph.nodes
    return [str(n.target) for n in nodes if n.op == "call_function"]


def test_a_cast_that_became_a_view_is_copied_where_it_is_written_to() -> None:
    def forward(m: Any, x: Any) -> Any:
        b = m.a(x).to(torch.bfloat16)
        b.add_(1.0)
        return b

    assert "aten.clone.default" not in targets(lambda m, x: m.a(x).bfloat16())
    found = targets(forward)
    assert found[found.index("aten.clone.default") - 1] == "aten.to.dtype"


def test_a_reshape_of_a_cast_is_copied_where_it_is_written_to() -> None:
    def forward(m: Any, x: Any) -> Any:
        a = m.a(x)[:, :4]
        y = a.reshape(-1)
        y.add_(1.0)
        return y, a.exp()

    in_full = {"op": "reshape", "class": "deny"}
    found = targets(forward, in_full)
    assert found[found.index("aten.reshape.default") + 1] == "aten.clone.default"
    assert "aten.clone.default" not in targets(forward)


def test_a_copy_in_any_dtype_is_left_alone() -> None:
    def forward(m: Any, x: Any) -> Any:
        b = m.a(x).clone()
        b.add_(1.0)
        return b

    assert targets(forward).count("aten.clone.default") == 1
