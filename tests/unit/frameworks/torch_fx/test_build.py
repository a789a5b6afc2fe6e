from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import PlanMismatchError
from amprewrite.frameworks.torch_fx.assemble import build
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.rewrite.read import read

X = torch.ones(2, 4)


def model() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()


@pytest.mark.parametrize("shared", [True, False])
def test_tensors_whose_dtype_stays_are_the_models_own_where_they_are_shared(
    *, shared: bool
) -> None:
    root = model()
    plan = amprewrite.inspect(root, args=(X,))
    reading = read(capture(root, (X,), None).module)
    converted = build(root, reading, plan, shared=shared)
    assert converted.plan == plan
    assert converted.get_parameter("0.weight").dtype == torch.bfloat16
    same = converted.get_parameter("1.weight").data_ptr() == root[1].weight.data_ptr()
    assert same is shared


def test_a_plan_of_another_program_is_refused() -> None:
    plan = amprewrite.inspect(nn.ReLU().eval(), args=(X,))
    root = model()
    reading = read(capture(root, (X,), None).module)
    with pytest.raises(PlanMismatchError):
        build(root, reading, plan, shared=True)
