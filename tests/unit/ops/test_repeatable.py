"""Ops that may run twice."""

import pytest

from amprewrite.ops import traits_of
from amprewrite.ops.repeatable import repeats


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("gelu", True),
        ("softmax", True),
        ("layer_norm", True),
        ("transpose", True),
        ("matmul", False),
        ("conv2d", False),
        ("scaled_dot_product_attention", False),
        ("dropout", False),
        ("rand", False),
        ("empty_like", False),
        ("all_gather", False),
        ("unheard_of", False),
    ],
)
def test_no_contraction_draw_or_unknown_op_runs_twice(
    name: str, *, twice: bool
) -> None:
    assert repeats(name, traits_of(name, "").group) is twice
