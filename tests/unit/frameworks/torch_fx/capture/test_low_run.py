"""Runs of a model in a low dtype that compute nothing."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture import cast_intent
from amprewrite.frameworks.torch_fx.capture.cast_intent import (
    run_on_fake,
    run_on_meta,
)
from amprewrite.frameworks.torch_fx.capture.export import export_model
from tests.torch_programs import Program

LOW = torch.bfloat16
CPU = torch.device("cpu")
TABLE = torch.arange(8.0)

RUNS = pytest.mark.parametrize("run", [run_on_meta, run_on_fake])


def x() -> torch.Tensor:
    return torch.randn(4, 8)


def seen_by(run: Callable[..., None], function: Callable[..., Any]) -> list[Any]:
    """Return what a function gives in a run, for a transposed input."""
    seen: list[Any] = []
    model = Program(lambda m, x: seen.append(function(m, x)), w=torch.ones(8)).eval()
    run(model, (x().t(),), {}, LOW)
    return seen


@RUNS
@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda m, x: (x.dtype, m.w.dtype, (x.sum(0) + m.w[0]).dtype), (LOW,) * 3),
        (lambda _, x: (x.shape, x.stride()), ((8, 4), (1, 8))),
        (lambda m, x: (x.device, m.w.device), (CPU, CPU)),
        (lambda _, x: (x.is_cpu, x.is_cuda, x.is_meta), (True, False, False)),
        (lambda _, x: x.get_device(), -1),
        (lambda _, x: (x + torch.zeros(4, device=x.device)).device, CPU),
        (lambda _, x: (x + torch.zeros(4, device="cpu")).device, CPU),
        (lambda _, x: (x + torch.tensor([1.0, 2, 3, 4])).dtype, torch.float32),
        (lambda _, x: (x.to("cpu") + x.to(x.device) + x.cpu()).device, CPU),
        (lambda _, x: x.to("cpu", torch.float32).dtype, torch.float32),
        (lambda m, _: isinstance(m.w, nn.Parameter), False),
    ],
)
def test_code_sees_low_tensors_on_the_device_of_the_model(
    run: Any, function: Any, wanted: Any
) -> None:
    assert seen_by(run, function) == [wanted]


@RUNS
def test_the_model_keeps_its_tensors(run: Any) -> None:
    model = nn.Linear(8, 2)
    before = model.weight
    run(model, (x(),), {}, LOW)
    assert model.weight is before
    assert before.dtype == torch.float32


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda _, x: x.float() + x.to(x.dtype), ["meta"]),
        (lambda _, x: (x + TABLE).to(x.dtype), ["meta", "fake"]),
    ],
)
def test_fake_tensors_are_taken_where_meta_tensors_stop(
    function: Callable[..., Any], runs: list[str]
) -> None:
    """A tensor with values among those without stops a run on meta tensors."""
    model = Program(function).eval()
    module = export_model(model, (x(),), {}).module
    taken: list[str] = []

    def meta(*given: Any) -> None:
        taken.append("meta")
        run_on_meta(*given)

    def fake(*given: Any) -> None:
        taken.append("fake")
        run_on_fake(*given)

    with mock.patch.multiple(cast_intent, run_on_meta=meta, run_on_fake=fake):
        assert list(cast_intent.tell_casts(module, model, (x(),), {}, LOW)) == []
    assert taken == runs
    nodes = (node.meta.get(cast_intent.CHOSEN) for node in module.graph.nodes)
    assert "follows" in [*nodes]
