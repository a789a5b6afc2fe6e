"""Guards before logarithms, roots and inverse cosines, and masks before a softmax.

The program computes its guarded values by a product with the identity, so that every
difference from full precision comes from a guard that was rounded.
"""

from types import SimpleNamespace

import pytest

import amprewrite

torch = pytest.importorskip("torch")

from torch import nn

LEAST = torch.finfo(torch.float32).min
pytestmark = pytest.mark.filterwarnings(
    "ignore:training in float16", "ignore:rewritten 0 of"
)

PLACEMENTS = ("promote", "paint", "optimal")


class Model(nn.Module):
    """A product ``a`` of the input ``x``, and a formula of both and the model ``m``."""

    def __init__(self, formula):
        super().__init__()
        self.weight, self.formula = nn.Parameter(torch.eye(4)), formula
        self.register_buffer("most", torch.tensor(1 - 1e-3))
        self.register_buffer("least", torch.tensor(1e-8))
        self.register_buffer("row", torch.full((4,), 1e-8))
        self.register_buffer("mask", torch.triu(torch.full((4, 4), LEAST), 1))

    def forward(self, x):
        product = nn.functional.linear(x, self.weight)
        return self.formula(SimpleNamespace(m=self, a=product, x=x))


def assigned(values, place, number):
    """Return a copy of ``values`` with a number assigned in place."""
    copy = values * 1
    copy[place] = number
    return copy


def filled(values, fill):
    """Return a copy of ``values`` in which a view is filled in place."""
    copy = values * 1
    fill(copy.select(1, 0))
    return copy


def twice_read(values, weight):
    return torch.log(1 - values) + nn.functional.linear(values, weight)


NEXT_TO_ONE = {
    "clamp": lambda p: torch.log(1 - p.a.clamp(max=1 - 1e-3)),
    "clamp by a tensor": lambda p: torch.log(1 - torch.clamp(p.a, max=p.m.most)),
    "minimum": lambda p: torch.log(1 - torch.minimum(p.a, p.m.most)),
    "minimum, computed": lambda p: torch.log(
        1 - torch.minimum(p.a, torch.ones_like(p.a) - 1e-3)
    ),
    "clip": lambda p: torch.log1p(-p.a.clip(-1 + 1e-3, 1 - 1e-3)),
    "acos": lambda p: torch.acos(p.a.clamp(-1 + 1e-7, 1 - 1e-7)),
    "atanh": lambda p: torch.atanh(p.a.clamp(-1 + 1e-7, 1 - 1e-7)),
    "hardtanh": lambda p: torch.atanh(nn.functional.hardtanh(p.a, -1 + 1e-3, 1 - 1e-3)),
    "acosh": lambda p: torch.acosh((p.a + 0.1).clamp(min=1 + 1e-4)),
    "clamp_min": lambda p: torch.acosh(torch.clamp_min(p.a, 1 + 1e-4)),
    "logit": lambda p: torch.logit((p.a * 9).sigmoid().clamp(1e-4, 1 - 1e-4)),
    "assigned": lambda p: torch.log(1 - assigned(p.a, p.a == 1, 1 - 1e-3)),
    "output": lambda p: p.a.clamp(0, 1 - 1e-3) - 0.5,
    "then a cast": lambda p: torch.log(1 - p.a.clamp(max=1 - 1e-3).float()),
    "second reader": lambda p: twice_read(p.a.clamp(max=1 - 1e-3), p.x),
}
"""Programs with a number that bfloat16 rounds to 1."""

NEXT_TO_ZERO = {
    "log": lambda p: p.a.clamp(min=1e-8).log(),
    "rsqrt": lambda p: torch.rsqrt(p.a.clamp(min=1e-8)),
    "sqrt": lambda p: torch.sqrt(p.a.clamp(min=1e-8)),
    "div": lambda p: (p.x + 1) / p.a.clamp(min=1e-8),
    "reciprocal": lambda p: torch.reciprocal(torch.maximum(p.a, p.m.least)),
    "pow": lambda p: p.a.clamp(min=1e-8) ** -0.5,
    "where": lambda p: torch.where(p.a > 0.5, p.a, 1e-8).log(),
    "where, a tensor": lambda p: torch.where(p.a > 0.5, p.a, p.m.least).log(),
    "where, a row": lambda p: torch.where(p.a > 0.5, p.a, p.m.row).log(),
    "masked_fill": lambda p: p.a.masked_fill(p.a < 0.5, 1e-8).log(),
    "masked_fill_": lambda p: (p.a * 1).masked_fill_(p.a < 0.5, 1e-8).log(),
    "assigned": lambda p: assigned(p.a, p.a < 0.5, 1e-8).log(),
    "fill_": lambda p: filled(p.a + 1, lambda b: b.fill_(1e-8)).log(),
    "copy_": lambda p: filled(p.a + 1, lambda b: b.copy_(p.m.least)).log(),
    "index_fill": lambda p: (p.a + 1).index_fill(0, torch.arange(2), 1e-8).log(),
    "index_put": lambda p: (p.a + 1).index_put((torch.arange(2),), p.m.least).log(),
    "threshold": lambda p: nn.functional.threshold(p.a, 1e-8, 1e-8).log(),
    "pad": lambda p: nn.functional.pad(p.a + 1, (1, 1), value=1e-8).log(),
    "cat": lambda p: torch.cat([p.a + 1, torch.full((1, 4), 1e-8)]).log(),
    "sum": lambda p: p.a[:1].clamp(min=1e-8).sum(0).log(),
    "addmm": lambda p: torch.addmm(p.m.least, p.a, p.x).log(),
    "addcmul": lambda p: torch.addcmul(p.m.least, p.a, p.x).log(),
}
"""Programs with a number that float16 rounds to 0."""

MASKS = {
    "masked_fill": lambda p: p.a.masked_fill(p.a > -9, -1e9),
    "assigned column": lambda p: assigned(p.a, (slice(None), 0), 1e9),
    "assigned rows": lambda p: assigned(p.a - 5, p.a < 9, -1e10),
    "where": lambda p: torch.where(p.a > 9, p.a, LEAST),
    "buffer": lambda p: p.a * -30 + p.m.mask,
    "buffer, row masked": lambda p: p.a + p.m.mask + LEAST / 2,
    "maximum": lambda p: torch.maximum(p.a + p.m.mask, torch.tensor(LEAST)),
    "addmm": lambda p: torch.addmm(p.m.mask, p.a, p.x),
    "baddbmm": lambda p: torch.baddbmm(p.m.mask[None], p.a[None], p.x[None]),
    "addbmm": lambda p: torch.addbmm(p.m.mask, p.a[None], p.x[None]),
    "fill_": lambda p: filled(p.a, lambda b: b.fill_(-1e10)),
}
"""Scores with a number that float16 has not; the softmax of them is asked for."""


def gradients(model, x):
    """Return the outputs, and the gradients of their sum."""
    inputs = [*model.parameters(), x.clone().requires_grad_()]
    outputs = model(inputs[-1])
    return outputs, torch.autograd.grad(outputs.sum(), inputs, allow_unused=True)


def check(formula, policy, placement, *, lazily=False, slope=True):
    """Compare values and gradients with full precision."""
    x = torch.eye(4)
    outputs, slopes = gradients(Model(formula), x)
    args = None if lazily else (x,)
    device = "cuda" if placement == "optimal" else None  # where low pays
    model = amprewrite.convert(
        Model(formula), policy, args=args, placement=placement, device=device
    )
    low_outputs, low_slopes = gradients(model, x)
    assert torch.allclose(low_outputs, outputs, rtol=2e-2, atol=1e-3)
    for full, low in zip(slopes, low_slopes, strict=True):
        if full is not None and slope and full.isfinite().all():
            assert low.isfinite().all()
            assert (low - full).norm() <= 0.05 * full.norm() + 1e-3


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", NEXT_TO_ONE)
def test_a_number_next_to_one_is_not_rounded_to_it(name, placement):
    check(NEXT_TO_ONE[name], "bf16", placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", NEXT_TO_ZERO)
def test_a_small_number_is_not_rounded_to_zero(name, placement):
    # the gradient of addmm is 1e8, which a low product cannot pass on
    check(NEXT_TO_ZERO[name], "fp16", placement, slope=name != "addmm")


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_saturates_before_a_softmax(name, policy, placement):
    check(lambda p: MASKS[name](p).softmax(-1), policy, placement)


@pytest.mark.parametrize("name", ["clamp", "minimum", "assigned"])
def test_a_guard_holds_in_a_model_converted_without_args(name):
    check(NEXT_TO_ONE[name], "bf16", "promote", lazily=True)


@pytest.mark.parametrize("name", ["log", "where, a row", "copy_", "addmm"])
def test_a_small_guard_holds_in_a_model_converted_without_args(name):
    slope = name != "addmm"
    check(NEXT_TO_ZERO[name], "fp16", "promote", lazily=True, slope=slope)


@pytest.mark.parametrize("name", ["assigned column", "addmm", "baddbmm"])
def test_a_mask_saturates_in_a_model_converted_without_args(name):
    check(lambda p: MASKS[name](p).softmax(-1), "fp16", "promote", lazily=True)


@pytest.mark.parametrize("policy", ["bf16-accumulate", "fp16-accumulate"])
def test_a_guard_holds_where_sums_accumulate(policy):
    check(NEXT_TO_ONE["clamp"], policy, "promote")


@pytest.mark.parametrize("placement", ["optimal", "fastest"])
def test_a_guard_holds_within_a_tolerance(placement):
    x = torch.eye(4)
    model = Model(NEXT_TO_ONE["clamp"]).eval()
    device = "cuda" if placement == "optimal" else None
    low = amprewrite.convert(
        model, args=(x,), placement=placement, tolerance=0.5, device=device
    )
    assert torch.allclose(low(x), model(x), rtol=2e-2)


class Attention(nn.Module):
    """Scores with a mask that is an argument."""

    def __init__(self, add):
        super().__init__()
        self.q, self.k, self.add = nn.Linear(4, 4), nn.Linear(4, 4), add

    def forward(self, x, mask):
        q, k = self.q(x), self.k(x).transpose(-1, -2)
        return self.add(mask, q, k).softmax(-1)


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    "add",
    [
        lambda mask, q, k: q @ k + mask,
        torch.baddbmm,
        lambda mask, q, k: torch.where(mask == 0, q @ k, mask),
        lambda mask, q, k: torch.maximum(q @ k + mask, mask),
    ],
    ids=["add", "baddbmm", "where", "maximum"],
)
def test_a_mask_that_is_an_argument_saturates(add, placement, policy):
    mask = torch.full((1, 3, 3), LEAST)
    mask[:, 1:, 0] = 0  # row 0 is padded throughout
    args = (torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)), mask)
    model = Attention(add).eval()
    device = "cuda" if placement == "optimal" else None
    low = amprewrite.convert(
        model, policy, args=args, placement=placement, device=device
    )
    assert torch.allclose(low(*args), model(*args), atol=2e-2)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_saturated_mask_and_a_negative_score_are_no_infinity(placement):
    mask = torch.full((1, 3, 3), LEAST)
    args = (torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)), mask)
    model = Attention(lambda mask, q, k: torch.baddbmm(mask, q - 9, k + 9)).eval()
    low = amprewrite.convert(model, "fp16", args=args, placement=placement)
    assert torch.allclose(low(*args), model(*args), atol=2e-2)


def test_the_plan_names_the_guard():
    x = torch.eye(4)
    plan = amprewrite.inspect(Model(NEXT_TO_ONE["clamp"]).eval(), args=(x,))
    text = str(plan.explain("clamp"))
    assert "the bound 0.999 of clamp is 1 in bfloat16" in text
    assert "log" in text
