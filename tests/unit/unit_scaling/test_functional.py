"""Every scaled op of torch has unit scale, forward and for each gradient."""

import pytest

from tests.unit_scaling_cases import cases

pytest.importorskip("torch")

import torch

from amprewrite.unit_scaling import RULES, functional

CASES = [(case, mult) for case in cases(1024) for mult in case.mults()]
IDS = [f"{case.name}-{mult:g}" for case, mult in CASES]


def scale_of(x, *, rms):
    return (x.square().mean().sqrt() if rms else x.std(correction=0)).item()


def test_every_public_op_has_a_rule():
    assert set(functional.__all__) <= set(RULES)


def test_every_public_op_is_a_case():
    """Dropout draws, and residuals take functions: they have tests of their own."""
    others = {"dropout", "residual_add", "residual_apply", "residual_split"}
    assert {case.op for case, _ in CASES} | others == set(functional.__all__)


@pytest.mark.parametrize(("case", "mult"), CASES, ids=IDS)
def test_scales_are_one(case, mult):
    made = [torch.from_numpy(x) for x in case.arguments()]
    inputs = [x.requires_grad_() for x in made if x.is_floating_point()]
    y = getattr(functional, case.op)(*made, **case.keywords(mult))
    y.backward(torch.randn_like(y) if y.dim() else None)
    found = [scale_of(x.grad, rms=case.rms) for x in inputs]
    assert found == pytest.approx([1.0] * len(inputs), abs=0.02)
    if case.forward is not None:
        assert scale_of(y, rms=case.rms) == pytest.approx(case.forward, rel=0.02)
