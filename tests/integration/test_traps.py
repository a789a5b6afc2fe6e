"""Programs on which naive rewriting is wrong: each was seen to break some tool."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from tests.torch_programs import (
    LOW,
    Program,
    in_full,
    relative_error,
    under_autocast,
)

ROUNDING = 2.0**-8
"""One rounding to bfloat16, relative; a few layers stay under two of them."""


def converted(model: nn.Module, *args: Any, policy: str = "bf16", **kwargs: Any) -> Any:
    return amprewrite.convert(model.eval(), policy, args=args, kwargs=kwargs)


def error(model: nn.Module, *args: Any, policy: str = "bf16") -> float:
    """Return the error against float32; its own rounding is 2**-15 of the bounds."""
    program = converted(model, *args, policy=policy)
    with torch.no_grad():
        out = program(*args)
        expected = model(*args)
    assert program.plan.lowered, program.plan.summary()
    return relative_error(out, expected)


def linear(width: int = 16) -> nn.Linear:
    return nn.Linear(width, width)


def test_guard_casts_around_a_norm_stay() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        wide = h.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return m.b(m.scale * wide.to(h.dtype))

    model = Program(forward, a=linear(), b=linear(), scale=nn.Parameter(torch.ones(16)))
    program = converted(model, torch.randn(4, 16))
    decisions = program.plan.decisions
    precision = {d.canonical: d.precision for d in decisions}
    assert precision["mean"] == precision["rsqrt"] == "float32"
    assert precision["integer_pow"] == "float32"
    up, back = (d for d in decisions if d.canonical == "cast")
    assert (up.op_class, up.precision) == ("keep", "float32")
    assert (back.op_class, back.precision) == ("follow", "bfloat16")
    assert error(model, torch.randn(4, 16)) < 2 * ROUNDING


def test_softmax_with_a_dtype_argument_stays_full() -> None:
    def forward(m: Any, x: Any) -> Any:
        q = m.a(x)
        w = torch.softmax(q @ q.transpose(-1, -2), -1, dtype=torch.float32).to(q.dtype)
        return w @ m.b(x)

    model = Program(forward, a=linear(), b=linear())
    x = torch.randn(2, 8, 16)
    program = converted(model, x)
    softmax = next(d for d in program.plan.decisions if d.canonical == "softmax")
    assert softmax.results == ("float32",)
    assert error(model, x) < 4 * ROUNDING


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_an_additive_mask_of_the_least_float_stays_finite(policy: str) -> None:
    """A row that is masked throughout becomes NaN if the mask becomes -inf."""

    def forward(m: Any, x: Any, keep: Any) -> Any:
        mask = (1.0 - keep) * torch.finfo(torch.float32).min
        q = m.a(x)[:, None]
        return m.b(F.scaled_dot_product_attention(q, q, q, attn_mask=mask))

    model = Program(forward, a=linear(), b=linear())
    keep = torch.ones(2, 1, 8, 8)
    keep[:, :, 3] = 0.0
    x = torch.randn(2, 8, 16)
    program = converted(model, x, keep, policy=policy)
    out, expected = program(x, keep), in_full(model, x, keep)
    assert bool(torch.isfinite(out).all())
    seen = [row for row in range(8) if row != 3]
    assert relative_error(out[:, :, seen], expected[:, :, seen]) < 4 * ROUNDING


def test_an_additive_mask_given_as_input_saturates() -> None:
    def forward(m: Any, x: Any, mask: Any) -> Any:
        q = m.a(x)[:, None]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    mask = torch.zeros(2, 1, 8, 8)
    mask[:, :, 2] = torch.finfo(torch.float32).min
    mask[:, :, :, 5] = float("-inf")
    assert (
        error(Program(forward, a=linear()), torch.randn(2, 8, 16), mask) < 4 * ROUNDING
    )


@pytest.mark.parametrize("policy", ["bf16", "fp16", "autocast-cpu"])
def test_masked_fill_with_the_least_float(policy: str) -> None:
    def forward(m: Any, x: Any, hidden: Any) -> Any:
        scores = m.a(x)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, -1)

    hidden = torch.rand(4, 16) > 0.5
    hidden[0] = True
    assert (
        error(Program(forward, a=linear()), torch.randn(4, 16), hidden, policy=policy)
        < 2 * ROUNDING
    )


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_where_with_a_scalar_tensor_of_the_least_float(policy: str) -> None:
    def forward(m: Any, x: Any, hidden: Any) -> Any:
        least = torch.full([], torch.finfo(torch.float32).min)
        return torch.softmax(torch.where(hidden, least, m.a(x)), -1)

    hidden = torch.rand(4, 16) > 0.5
    hidden[0] = True
    assert (
        error(Program(forward, a=linear()), torch.randn(4, 16), hidden, policy=policy)
        < 2 * ROUNDING
    )


def test_in_place_writes_keep_their_meaning() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = F.relu_(m.a(x))
        h.add_(x)  # low += full
        y = x.clone()
        y.add_(m.b(x))  # full += low
        h.mul_(0.5)
        return h, y

    assert (
        error(Program(forward, a=linear(), b=linear()), torch.randn(4, 16))
        < 2 * ROUNDING
    )


def test_a_mutated_input_is_mutated() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        x.add_(h)
        return m.b(x)

    model = Program(forward, a=linear(), b=linear()).eval()
    x = torch.randn(4, 16)
    program = converted(model, x.clone())
    ours, theirs = x.clone(), x.clone()
    with torch.no_grad():
        out, expected = program(ours), model(theirs)
    assert ours.dtype == torch.float32
    assert relative_error([ours, out], [theirs, expected]) < 2 * ROUNDING


@pytest.mark.parametrize("view", [False, True])
def test_a_value_that_is_mutated_after_its_cast_is_cast_again(*, view: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = x * 1.0
        first = m.a(h)
        (h.view(-1) if view else h).mul_(-3.0)
        return first + m.b(h)

    model = Program(forward, a=linear(), b=linear())
    program = converted(model, torch.randn(4, 16))
    assert sum(cast.producer in ("mul", "mul_") for cast in program.casts) == 2
    assert error(model, torch.randn(4, 16)) < 2 * ROUNDING


def test_an_alias_that_the_model_relies_on_survives() -> None:
    """In float32 ``.float()`` gives the same tensor, so adding to it adds to both."""

    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        f = h.float()
        f.add_(1.0)
        return m.b(h)

    model = Program(forward, a=linear(), b=linear())
    x = torch.randn(4, 16)
    assert error(model, x) < 2 * ROUNDING
    assert relative_error(under_autocast(model, x), in_full(model, x)) > 0.1


def _index_put(h: Any, s: Any, i: Any) -> Any:
    return h.index_put((i,), s[i])


def _setitem(h: Any, s: Any, i: Any) -> Any:
    out = torch.empty_like(s)
    out[:] = 0.0
    out[i] = h[i]
    return out


def _masked_scatter(h: Any, s: Any, i: Any) -> Any:
    del i
    return h.masked_scatter(h > 0, s)


EQUAL_DTYPE = {
    "index_put": _index_put,
    "setitem": _setitem,
    "masked_scatter": _masked_scatter,
    "scatter": lambda h, s, i: s.scatter(0, i[:, None].expand(-1, 16), h),
    "scatter_add": lambda h, s, i: s.scatter_add(0, i[:, None].expand(-1, 16), h),
    "index_add": lambda h, s, i: s.index_add(0, i, h[i]),
    "index_add_low": lambda h, s, i: h.index_add(0, i, s[i]),
    "index_copy": lambda h, s, i: h.index_copy(0, i, s[i]),
    "lerp": lambda h, s, _: torch.lerp(h, s, 0.3),
    "complex": lambda h, s, _: torch.complex(h, s).abs(),
    "cat": lambda h, s, _: torch.cat([h, s]),
    "stack": lambda h, s, _: torch.stack([h, s]),
    "where": lambda h, s, _: torch.where(s > 0, h, s),
    "addmm": lambda h, s, _: torch.addmm(s, h, s.t().contiguous()[:, :4] @ s[:4]),
    "baddbmm": lambda h, s, _: torch.baddbmm(s[None], h[None], s[None].mT @ s[None]),
    "einsum": lambda h, s, _: torch.einsum("ij,kj->ik", h, s),
    "addcmul": lambda h, s, _: torch.addcmul(h, s, s, value=0.5),
    "attention": lambda h, s, _: F.scaled_dot_product_attention(
        h[None], s[None], s[None]
    ),
    "fft": lambda h, s, _: torch.fft.rfft(h).abs() + s[:, :9],
    "polar": lambda h, s, _: torch.view_as_real(torch.polar(h.abs(), s)),
    "cdist": lambda h, s, _: torch.cdist(h, s),
    "grid_sample": lambda h, s, _: F.grid_sample(
        h[None, None], s.reshape(1, -1, 8, 2).clamp(-1, 1), align_corners=True
    ),
}
"""Ops that reject operands of mixed dtypes, or run in no low precision at all."""


@pytest.mark.parametrize("policy", ["bf16", "fp16", "autocast-cpu"])
@pytest.mark.parametrize("name", EQUAL_DTYPE)
def test_ops_that_want_equal_dtypes_get_them(name: str, policy: str) -> None:
    """torch.autocast raises on seven of these."""
    op = EQUAL_DTYPE[name]

    def forward(m: Any, x: Any, s: Any, i: Any) -> Any:
        return op(m.a(x), s, i)

    x, s = torch.randn(4, 16), torch.randn(4, 16)
    model = Program(forward, a=linear())
    assert error(model, x, s, torch.tensor([2, 0]), policy=policy) < 4 * ROUNDING


def test_positions_times_frequencies_stay_full() -> None:
    """A matmul over one element: torch.autocast has an error of one half here."""

    def forward(m: Any, x: Any) -> Any:
        positions = torch.arange(x.shape[1])[:, None].float()
        angles = positions @ m.frequencies[None]
        h = m.a(x)
        return h * angles.cos() + h * angles.sin()

    frequencies = 1.0 / 10000 ** (torch.arange(0, 16) / 16)
    model = Program(forward, a=linear(), frequencies=frequencies)
    x = torch.randn(1, 2048, 16)
    assert error(model, x) < 2 * ROUNDING
    assert relative_error(under_autocast(model, x), in_full(model, x)) > 0.1


def test_what_makes_an_angle_stays_full_through_moves() -> None:
    def forward(m: Any, x: Any, positions: Any) -> Any:
        angles = torch.cat([positions @ m.frequencies] * 2, -1).transpose(0, 1)
        return m.a(x) * angles.sin().transpose(0, 1)

    model = Program(forward, a=linear(), frequencies=torch.rand(3, 8))
    positions = torch.arange(4096 * 3).reshape(4096, 3).float()
    assert error(model, torch.randn(4096, 16), positions) < 2 * ROUNDING


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_regions_of_the_model_are_respected(*, enabled: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            h = m.b(h)
        return m.a(h.float())

    model = Program(forward, a=linear(), b=linear()).eval()
    x = torch.randn(4, 16)
    program = converted(model, x)
    inside = [d for d in program.plan.decisions if d.rule == "fence"]
    assert inside
    assert all(d.op_class == "keep" for d in inside)
    assert error(model, x) < 2 * ROUNDING
    with torch.no_grad():
        assert program(x).dtype == model(x).dtype


def test_autocast_regions_are_respected_without_args() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        with torch.autocast("cpu", enabled=False):
            h = m.b(h)
        return m.a(h)

    model = Program(forward, a=linear(), b=linear()).eval()
    program = amprewrite.convert(model)
    x = torch.randn(4, 16)
    with torch.no_grad():
        out = program(x)
    linears = [d for d in program.plan.decisions if d.canonical == "linear"]
    assert [d.precision for d in linears] == ["bfloat16", "float32", "bfloat16"]
    assert relative_error(out, in_full(model, x)) < 2 * ROUNDING


def test_a_no_grad_region_stays_and_its_ops_are_rewritten() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            h = m.a(x)
        return m.b(h)

    model = Program(forward, a=linear(), b=linear()).train()
    program = amprewrite.convert(model, args=(torch.randn(4, 16),))
    assert sum(d.precision == "bfloat16" for d in program.plan.decisions) >= 2
    program(torch.randn(4, 16)).sum().backward()
    assert model.a.weight.grad is None
    assert model.b.weight.grad is not None


class StraightThrough(torch.autograd.Function):
    """Rounds forward, passes the gradient: its backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx
        return grads[0] * 2.0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # dynamo's own doing
def test_a_custom_backward_survives() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.b(StraightThrough.apply(m.a(x)))

    model = Program(forward, a=linear(), b=linear()).train()
    x = torch.randn(4, 16)
    program = amprewrite.convert(model, args=(x,))
    assert "drops the backward" in program.plan.captured
    model(x).square().mean().backward()
    expected = model.a.weight.grad.clone()
    model.zero_grad()
    program(x).square().mean().backward()
    assert relative_error(model.a.weight.grad, expected) < 8 * ROUNDING
    assert program.plan.lowered


def test_activation_checkpoints_stay_and_their_bodies_are_rewritten() -> None:
    from torch.utils.checkpoint import checkpoint

    def forward(m: Any, x: Any) -> Any:
        return m.b(checkpoint(lambda y: m.a(y).tanh(), x, use_reentrant=False))

    model = Program(forward, a=linear(), b=linear()).train()
    x = torch.randn(4, 16, requires_grad=True)
    program = amprewrite.convert(model, args=(x,))
    assert "checkpoint" in program.plan.captured
    assert len([d for d in program.plan.decisions if d.precision == "bfloat16"]) >= 2
    model(x).square().mean().backward()
    expected = model.a.weight.grad.clone()
    model.zero_grad()
    program(x).square().mean().backward()
    assert relative_error(model.a.weight.grad, expected) < 8 * ROUNDING


def test_a_bitcast_sees_the_dtype_it_was_written_for() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h.view(torch.int32), m.b(h)

    model = Program(forward, a=linear(), b=linear())
    x = torch.randn(4, 16)
    bits, _ = converted(model, x)(x)
    assert bits.shape == (4, 16)
    assert bits.dtype == torch.int32


def test_a_branch_on_the_dtype_keeps_its_traced_side() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x)
        return h * 2 if h.dtype == torch.float32 else h * 100

    model = Program(forward, a=linear())
    x = torch.randn(4, 16)
    assert error(model, x) < 2 * ROUNDING
    assert relative_error(under_autocast(model, x), in_full(model, x)) > 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_dtypes_are_untouched(dtype: Any) -> None:
    def forward(m: Any, x: Any, other: Any) -> Any:
        return m.a(x), other @ other

    model = Program(forward, a=linear())
    other = torch.arange(9).reshape(3, 3).to(dtype)
    x = torch.randn(4, 16)
    _, product = converted(model, x, other)(x, other)
    assert product.dtype == dtype
    assert torch.equal(product, other @ other)


def test_recurrent_layers_are_lowered_with_all_their_weights() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.gru(m.lstm(x)[0])[0]

    parts = {"lstm": nn.LSTM(16, 16, 2), "gru": nn.GRU(16, 16)}
    model = Program(forward, **parts)
    x = torch.randn(5, 2, 16)
    program = converted(model, x)
    assert all(p.dtype == LOW for p in program.parameters())
    assert error(model, x) < 2 * ROUNDING


def test_a_tied_weight_has_one_copy() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.b(m.a(x))

    model = Program(forward, a=linear(), b=linear())
    model.b.weight = model.a.weight
    program = converted(model, torch.randn(4, 16))
    names = dict(program.named_parameters(remove_duplicate=False))
    assert names["a.weight"] is names["b.weight"]
    assert names["a.weight"].dtype == LOW
    assert list(program.state_dict()) == list(model.state_dict())


def test_a_weight_read_in_both_precisions_is_cast_once_a_call_and_held_once() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x) + m.a(x + 1) + m.a.weight.exp().sum()

    model = Program(forward, a=linear())
    x = torch.randn(4, 16)
    program = converted(model, x)
    weights = [c.value for c in program.casts if c.is_weight and not c.folded]
    assert weights == ["a_weight"]
    assert len([*program.parameters(), *program.buffers()]) == 2
    assert program.get_parameter("a.weight").dtype == torch.float32
    assert error(model, x) < 2 * ROUNDING


def test_weights_reached_through_views_and_casts_are_folded() -> None:
    def forward(m: Any, x: Any) -> Any:
        experts = m.experts.transpose(-1, -2).to(torch.float32)
        return torch.bmm(x, experts[0:2]) + torch.bmm(x, m.experts[2:4].mT)

    model = Program(forward, experts=nn.Parameter(torch.randn(4, 16, 16)))
    x = torch.randn(2, 4, 16)
    program = converted(model, x)
    assert not [c for c in program.casts if c.is_weight and not c.folded]
    assert program.get_parameter("experts").dtype == LOW
    assert error(model, x) < 2 * ROUNDING


def test_dropout_draws_the_same_mask() -> None:
    def forward(m: Any, x: Any) -> Any:
        return F.dropout(m.a(x), 0.5, True)

    model = Program(forward, a=linear()).train()
    x = torch.randn(64, 16)
    program = amprewrite.convert(model, args=(x,))
    torch.manual_seed(3)
    ours = program(x)
    torch.manual_seed(3)
    assert torch.equal(ours == 0, model(x) == 0)


def test_random_factories_draw_what_they_drew() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.a(x), torch.rand_like(m.a(x)), torch.randn(3)

    model = Program(forward, a=linear()).eval()
    x = torch.randn(4, 16)
    program = converted(model, x)
    torch.manual_seed(3)
    _, *ours = program(x)
    torch.manual_seed(3)
    _, *theirs = model(x)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_keep_their_dtype_and_values(momentum: float | None) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.bn(m.a(x))

    model = Program(
        forward, a=nn.Conv2d(3, 8, 3), bn=nn.BatchNorm2d(8, momentum=momentum)
    )
    x = torch.randn(4, 3, 8, 8)
    expected = copy.deepcopy(model).train()
    program = amprewrite.convert(model.train(), args=(x,))
    assert int(model.bn.num_batches_tracked) == 0, "capturing leaves the state alone"
    program(x)
    expected(x)
    assert program.get_buffer("bn.running_mean").dtype == torch.float32
    for name in ("running_mean", "running_var"):
        ours, theirs = getattr(model.bn, name), getattr(expected.bn, name)
        assert relative_error(ours, theirs) < 2 * ROUNDING
    assert int(model.bn.num_batches_tracked) == 1


def test_a_hook_and_a_parametrization_are_part_of_the_program() -> None:
    model = Program(lambda m, x: m.a(x), a=linear())
    torch.nn.utils.parametrizations.weight_norm(model.a)
    model.a.register_forward_hook(lambda _m, _i, out: out * 2)
    assert error(model, torch.randn(4, 16)) < 2 * ROUNDING


def test_fp16_keeps_an_epsilon_that_float16_cannot_hold() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x) * 0.0
        return F.layer_norm(h, (16,), eps=1e-12) + h / (h.abs() + 1e-8)

    model = Program(forward, a=linear())
    x = torch.randn(4, 16)
    out = converted(model, x, policy="fp16")(x)
    assert bool(torch.isfinite(out).all())


def test_a_linear_on_a_transposed_input_is_laid_out() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.b(m.a(x).transpose(0, 1))

    model = Program(forward, a=linear(), b=linear())
    program = converted(model, torch.randn(3, 5, 16))
    assert "aten.contiguous" in str(program.rewritten.graph)
    assert error(model, torch.randn(3, 5, 16)) < 2 * ROUNDING


def test_a_module_converted_for_training_switches_its_mode() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.b(m.bn(F.dropout(m.a(x), 0.5, m.training)))

    model = Program(forward, a=linear(), bn=nn.BatchNorm1d(16), b=linear()).train()
    program = amprewrite.convert(model, args=(torch.randn(8, 16),))
    x = torch.randn(8, 16)
    program(x).sum().backward()
    program.eval()
    with pytest.raises(amprewrite.errors.NotCapturedError, match="eval mode"):
        _ = program.plan
    with torch.no_grad():
        out = program(x)
        assert torch.equal(out, program(x)), "no dropout in eval mode"
        assert relative_error(out, copy.deepcopy(model).eval()(x)) < 2 * ROUNDING
    assert model.training, "the model itself stays as it was"
    assert any(d.canonical == "batch_norm_inference" for d in program.plan.decisions)
    program.train()
    assert not torch.equal(program(x), program(x))


def test_a_module_converted_for_inference_does_not_train() -> None:
    model = Program(lambda m, x: m.a(x), a=linear())
    program = converted(model, torch.randn(4, 16))
    with pytest.raises(amprewrite.errors.UnsupportedError, match="training=True"):
        program.train()
    assert program.eval() is program


@pytest.mark.parametrize("at_once", [True, False])
def test_autocast_around_a_converted_module_changes_nothing(*, at_once: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.b(m.a(x))

    model = Program(forward, a=linear(), b=linear()).eval()
    x = torch.randn(4, 16)
    keep = [{"path": "a", "class": "deny"}]
    args = (x,) if at_once else None
    program = amprewrite.convert(model, overrides=keep, args=args)
    with torch.no_grad():
        expected = program(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(program(x), expected)


@pytest.mark.parametrize("training", [False, True])
def test_a_forward_that_seeds_does_so_at_each_call(*, training: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        torch.manual_seed(7)
        return m.a(x) + torch.rand(8)

    model, x = Program(forward, a=nn.Linear(8, 8)).train(training), torch.randn(4, 8)
    state = torch.get_rng_state()
    program = amprewrite.convert(model, args=(x,))
    assert torch.equal(torch.get_rng_state(), state)
    assert "seeds the random generator" in program.plan.captured
    wanted = model(x)
    torch.rand(1)
    torch.testing.assert_close(program(x), wanted, atol=0.05, rtol=0.05)
