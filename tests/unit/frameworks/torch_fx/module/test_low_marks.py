"""Marks on tensors that are stored low."""

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype, mark_low


def test_a_mark_is_the_dtype_in_the_model() -> None:
    tensor = torch.ones(2, dtype=torch.bfloat16)
    assert full_dtype(tensor) == torch.bfloat16
    mark_low(tensor, torch.float32)
    assert full_dtype(tensor) == torch.float32
    assert tensor.dtype == torch.bfloat16
