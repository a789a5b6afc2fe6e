"""Predicted errors of gradients are not below the measured ones over a factor."""

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import amprewrite
from tests.integration.test_float8_tolerance import gradient_error

FACTOR = 1.5
"""Largest ratio of a measured error to a predicted one."""

ACTIVATIONS = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh)


@st.composite
def networks(draw: Any) -> tuple[nn.Module, Any]:
    """Draw a small network with random weights, and a batch for it."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    widths = draw(st.lists(st.sampled_from((8, 16, 48)), min_size=2, max_size=4))
    parts: list[nn.Module] = []
    for read, made in pairwise(widths):
        parts += [nn.Linear(read, made), draw(st.sampled_from(ACTIVATIONS))()]
        parts += [nn.LayerNorm(made)] if draw(st.booleans()) else []
    model = nn.Sequential(*parts, nn.Linear(widths[-1], 4))
    return model.train(), (torch.randn(draw(st.sampled_from((4, 32))), widths[0]),)


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@settings(max_examples=6, deadline=None)
@given(networks())
def test_the_error_of_gradients_is_not_understated(drawn: Any) -> None:
    model, args = drawn
    converted = amprewrite.convert(
        model, "fp8", args=args, tolerance=5.0, training=True
    )
    predicted = converted.plan.gradient_error
    assert predicted is not None
    assert gradient_error(model, converted, args) <= FACTOR * predicted.error + 1e-6
