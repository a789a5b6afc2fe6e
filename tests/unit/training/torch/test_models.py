"""The advice on a loss scale, by the converted parts of a model."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.training.torch.scaler import advice_for


def test_the_advice_is_that_of_all_converted_parts():
    x = torch.randn(2, 4)
    part = amprewrite.convert(nn.Linear(4, 4).train(), args=(x,))
    late = amprewrite.convert(nn.Linear(4, 4).train(), "fp16")
    whole = nn.Sequential(nn.Linear(4, 4), part, late)
    assert advice_for(nn.Linear(4, 4)) is None
    assert "not needed: bfloat16" in str(advice_for(whole))
    late(x)
    assert advice_for(whole) == ""


@pytest.mark.parametrize(
    ("policy", "overflows"),
    [("fp16", "float16"), ("unit-fp8", "float8_e5m2"), ("bf16", ""), ("fp8", "")],
)
def test_a_scale_beside_unit_scaling_overflows(policy: str, overflows: str):
    """In bfloat16, and where each tensor has a scale, it is only not needed."""
    x = torch.randn(8, 16)
    model = amprewrite.unit_scale(nn.Linear(16, 16), (x,))
    converted = amprewrite.convert(model, policy, args=(x,))
    found = advice_for(nn.Sequential(converted))
    if overflows:
        assert "beside unit scaling: gradients have a scale near 1" in str(found)
        assert f"overflow {overflows} with it" in str(found)
    else:
        assert "not needed" in str(found)


def test_gradients_of_8_bits_without_a_scale_profit_from_one():
    """A plain model: small gradients become zero in e5m2, too."""
    x = torch.randn(8, 16)
    converted = amprewrite.convert(nn.Linear(16, 16), "unit-fp8", args=(x,))
    assert advice_for(converted) == ""
