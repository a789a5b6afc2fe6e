"""Casts that are noted while a model is traced, and taken out again."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.dtypes import Processor
from amprewrite.frameworks.torch_fx.capture.export import export_model
from amprewrite.frameworks.torch_fx.capture.promotion_tracing import READS, promoting
from amprewrite.frameworks.torch_fx.compat import tracing
from amprewrite.frameworks.torch_fx.rewrite.read import read

aten = torch.ops.aten
JAX = Processor("jax", x64=True)


def captured(model: nn.Module, *args: torch.Tensor) -> torch.fx.GraphModule:
    return export_model(model, args, {}, processor=JAX).module


def test_the_casts_are_taken_out_and_remembered_by_their_readers() -> None:
    module = captured(nn.Linear(4, 2).bfloat16(), torch.ones(3, 4))
    (linear,) = (n for n in module.graph.nodes if n.op == "call_function")
    assert linear.target is aten.linear.default
    held = {source.name: dtype for source, dtype in linear.meta[READS].items()}
    assert set(held.values()) == {"float32"}
    assert "weight" in " ".join(held)
    assert linear.meta["val"].dtype == torch.float32


def test_what_is_read_says_the_dtype_of_every_operand() -> None:
    (op,) = read(captured(nn.Linear(4, 2).bfloat16(), torch.ones(3, 4))).graph.ops
    assert op.reads == ("float32",) * 3
    (op,) = read(captured(nn.Linear(4, 2), torch.ones(3, 4))).graph.ops
    assert op.reads == ()


def test_casts_that_the_model_writes_stay() -> None:
    class Casting(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.double() + y

    ops = read(captured(Casting(), torch.ones(2), torch.ones(2))).graph.ops
    assert [op.canonical for op in ops] == ["cast", "add"]
    assert ops[1].reads == ("float64", "float64")


def test_the_tracer_is_left_as_it_was() -> None:
    mode = tracing.proxy_tensor.ProxyTorchDispatchMode
    before = mode.__torch_dispatch__
    with promoting(JAX):
        assert mode.__torch_dispatch__ is not before
    assert mode.__torch_dispatch__ is before
    with promoting(None):
        assert mode.__torch_dispatch__ is before


def test_recurrent_layers_take_other_inputs_only_while_traced() -> None:
    model, x = nn.LSTM(4, 4).bfloat16(), torch.ones(3, 1, 4)
    (op,) = (op for op in read(captured(model, x)).graph.ops if op.canonical == "lstm")
    assert set(op.reads) == {"float32"}
    with pytest.raises(ValueError, match="does not match weight dtype"):
        model(x)
