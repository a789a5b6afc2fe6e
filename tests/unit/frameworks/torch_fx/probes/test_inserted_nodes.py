from math import inf

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph

from amprewrite.frameworks.torch_fx.probes.lockstep import (
    inserted_sample,
    is_rounded,
)
from amprewrite.verify.own_errors import compared, kernel_error

X = torch.randn(64)
GRAPH = Graph()
NODE = GRAPH.call_function(torch.ops.aten.to.dtype, (GRAPH.placeholder("x"),))


def is_fault(made, *handed, limit=inf):
    sample = inserted_sample(NODE, "body.to", made, handed, limit)
    assert sample is not None
    assert sample.decision is not None
    assert sample.op == "body.to"
    found = kernel_error(sample, sample.decision, compared(sample, [0.0]))
    assert found is not None
    return found[0] > found[1]


def test_a_cast_hands_on_what_it_reads():
    assert not is_fault(X.bfloat16(), X)
    assert not is_fault(X.bfloat16().float(), X.bfloat16())
    assert is_fault(X.bfloat16() * 1.1, X)
    assert is_fault(torch.zeros(64), X)


def test_any_of_several_operands_may_be_handed_on():
    assert not is_fault(X, torch.zeros(64), X, torch.ones(3))


def test_masks_may_be_brought_into_range():
    mask = torch.tensor([1.0, -3.4e38])
    clamped = mask.clamp(-65504, 65504)
    assert not is_fault(clamped, mask, limit=65504.0)
    assert not is_fault(clamped.half(), mask, limit=65504.0)
    assert is_fault(clamped * 1.1, mask, limit=65504.0)


def test_what_is_no_float_or_of_another_shape_is_not_compared():
    assert inserted_sample(NODE, "n", X > 0, (X,), inf) is None
    assert inserted_sample(NODE, "n", X.reshape(8, 8), (X,), inf) is None


def test_a_weight_is_stored_as_its_rounding():
    wide = X.double()
    assert is_rounded(X.bfloat16(), wide)
    assert not is_rounded(X.bfloat16() * 2, wide)
    assert is_rounded(3, wide)
