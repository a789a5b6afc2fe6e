"""Numbers come from rules, and are constants of captured programs."""

import pytest

pytest.importorskip("torch")

import torch

from amprewrite.unit_scaling import rule
from amprewrite.unit_scaling.functional import numbers
from amprewrite.unit_scaling.torch.scale import scale


def test_numbers_are_those_of_the_rule():
    assert numbers("hardtanh", 2, None) == rule("hardtanh", 2.0)
    assert numbers("elu", 1.0, None, alpha=0.3) == rule("elu", alpha=0.3)
    assert numbers("softmax", 1.0, None, size=9) == rule("softmax", size=9)


def test_numbers_are_traced_as_constants():
    """Also where extents and numbers vary otherwise."""

    def function(x, mult, slope):
        forward, backward = numbers("leaky_relu", mult, None, negative_slope=slope)
        y = scale(x, forward, backward)
        return scale(y, *numbers("softmax", mult, "gmean", size=x.shape[0]))

    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    for arguments in ((torch.ones(5), 2.0, 0.1), (torch.ones(7), 4.0, 0.2)):
        assert torch.equal(compiled(*arguments), function(*arguments))
