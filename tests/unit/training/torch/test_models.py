"""What a loss scale wants to know of a model."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.training.torch.models import low_dtypes


def test_the_low_dtypes_of_converted_parts_are_found():
    x = torch.randn(2, 4)
    part = amprewrite.convert(nn.Linear(4, 4).train(), args=(x,))
    late = amprewrite.convert(nn.Linear(4, 4).train(), "fp16")
    whole = nn.Sequential(nn.Linear(4, 4), part, late)
    assert low_dtypes(nn.Linear(4, 4)) == set()
    assert low_dtypes(whole) == {"bfloat16"}
    late(x)
    assert low_dtypes(whole) == {"bfloat16", "float16"}
