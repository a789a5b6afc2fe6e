"""Casts that the model means and casts that follow, in a block of a decoder."""

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from tests.torch_programs import relative_error, under_autocast

FULL = torch.float32
LENGTH, WIDTH, HEADS = 16, 64, 4
START = 4096 - LENGTH
"""The last position is 4,095: of its angle bfloat16 keeps no digit, float16 one."""


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class Rotary(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: torch.Tensor

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None].float() * self.frequencies[None].float()
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotated(x: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([-two, one], -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query_norm = RMSNorm(WIDTH), RMSNorm(WIDTH // HEADS)
        self.rotary = Rotary(WIDTH // HEADS)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, padding: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        h = self.norm(x)
        q, k, v = (
            part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q = self.query_norm(q)
        cos, sin = self.rotary(q, positions)
        q, k = (y * cos + rotated(y) * sin for y in (q, k))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        lowest = torch.finfo(scores.dtype).min
        mask = torch.full((LENGTH, LENGTH), lowest, dtype=scores.dtype).triu(1)
        mask = mask + (1.0 - padding[:, None, None].to(scores.dtype)) * lowest
        weights = torch.softmax(scores + mask, -1, dtype=FULL).to(v.dtype)
        made = (weights @ v).transpose(1, 2).flatten(2)
        return x + self.o(made), cos, sin, mask, q


def inputs() -> tuple[torch.Tensor, ...]:
    padding = torch.ones(2, LENGTH, dtype=torch.int64)
    padding[0, LENGTH // 2 :] = 0
    return torch.randn(2, LENGTH, WIDTH), torch.arange(LENGTH) + START, padding


@pytest.fixture(params=["bf16", "fp16"])
def block(request: pytest.FixtureRequest) -> tuple[nn.Module, Any, Any]:
    model, args = Block().eval(), inputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # float16 on a CPU
        return model, amprewrite.convert(model, request.param, args=args), args


def casts(converted: Any, path: str = "") -> list[tuple[str, str]]:
    found = (d for d in converted.plan.decisions if d.canonical == "cast")
    return [(d.op_class, d.precision) for d in found if d.path == path]


def test_islands_are_kept_and_casts_that_follow_follow(
    block: tuple[nn.Module, Any, Any],
) -> None:
    _, converted, _ = block
    low = converted.plan.low
    assert casts(converted, "norm") == [("keep", "float32"), ("follow", "float32")]
    assert casts(converted, "query_norm") == [("keep", "float32"), ("follow", low)]
    pinned, follows = ("keep", "float32"), ("follow", "float32")
    assert casts(converted, "rotary") == [pinned, pinned, follows, follows]
    island = {d.canonical: d.precision for d in converted.plan.decisions}
    for op in ("integer_pow", "mean", "rsqrt", "cos", "sin", "softmax"):
        assert island[op] == "float32", op
    matrices = [
        d for d in converted.plan.decisions if d.canonical in ("linear", "matmul")
    ]
    assert [d.precision for d in matrices] == [low] * 6


def test_angles_are_exact_and_masks_finite(block: tuple[nn.Module, Any, Any]) -> None:
    model, converted, args = block
    with torch.no_grad():
        made, cos, sin, mask, _ = converted(*args)
        expected = model(*args)
    assert torch.equal(cos, expected[1])
    assert torch.equal(sin, expected[2])
    rotary = model.get_submodule("rotary")
    last = 4095 * rotary.get_buffer("frequencies").double()
    assert (cos[-1].double() - torch.cat([last, last]).cos()).abs().max() < 4e-4
    assert not mask.isneginf().logical_and(~expected[3].isneginf()).any()
    assert made.isfinite().all()


def test_it_is_as_exact_as_autocast(block: tuple[nn.Module, Any, Any]) -> None:
    model, converted, args = block
    wide = model.double()(args[0].double(), *args[1:])[0]
    model.float()
    with torch.no_grad():
        error = relative_error(converted(*args)[0], wide)
    if converted.plan.low == "bfloat16":
        assert error <= 1.1 * relative_error(under_autocast(model, *args)[0], wide)
    assert error < {"bfloat16": 2**-8, "float16": 2**-11}[converted.plan.low]


class Mixed(nn.Module):
    """Integer ids, boolean masks, a complex branch and a float64 tail."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor, kept: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.inner(self.table(ids))
        h = h.masked_fill(~kept[..., None], 0.0)
        waves = torch.fft.rfft(self.table(ids), dim=-1)
        phases = waves * torch.polar(torch.ones(33), torch.arange(33) / 33.0)
        h = h + torch.fft.irfft(phases, n=WIDTH, dim=-1)
        tail = self.outer(h).double().square().sum(-1)
        ranks = (ids * 2 + kept).cumsum(-1)
        return {"tail": tail, "waves": phases, "ranks": ranks, "both": kept & (ids > 3)}


@pytest.mark.parametrize("policy", ["bf16", "fp16", "promote"])
def test_dtypes_outside_float32_are_those_of_the_model(
    policy: str, recwarn: pytest.WarningsRecorder
) -> None:
    model, ids = Mixed().eval(), torch.randint(0, 32, (2, 8))
    args = (ids, torch.rand(2, 8) > 0.3)
    converted = amprewrite.convert(model, policy, args=args)
    assert all("float16 on a CPU" in str(found.message) for found in recwarn)
    with torch.no_grad():
        made, expected = converted(*args), model(*args)
    for name in ("waves", "ranks", "both"):
        assert made[name].dtype == expected[name].dtype
        assert torch.equal(made[name], expected[name]), name
    assert made["tail"].dtype == torch.float64
    assert relative_error(made["tail"], expected["tail"]) < 2e-2
    traced = amprewrite.inspect(model, "off", args=args).decisions
    for before, after in zip(traced, converted.plan.decisions, strict=True):
        for one, other in zip(before.results, after.results, strict=True):
            assert one in {other, "float32"}, before.op


def test_a_tensor_that_names_the_dtype_is_followed() -> None:
    class Naming(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            wide = h.float().softmax(-1)
            return self.last(wide.type_as(h).relu() + wide.to(h))

    plan = amprewrite.inspect(Naming().eval(), args=(torch.randn(4, 8),))
    _, type_as, to = (d for d in plan.decisions if d.canonical == "cast")
    assert type_as.native == "aten.type_as.default"
    for found in (type_as, to):
        assert (found.op_class, found.precision) == ("follow", "bfloat16")
    relu = next(d for d in plan.decisions if d.canonical == "relu")
    assert relu.precision == "bfloat16"


def test_models_are_captured_inside_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(8, 8).half(), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    outside = amprewrite.convert(model, "promote", args=(x,))(x)
    with torch.inference_mode():
        given = torch.randn(4, 8)
        inside = amprewrite.convert(model, "promote", args=(given,))
        assert torch.equal(inside(x), outside)
        late = amprewrite.convert(model, "promote")
        assert torch.equal(late(x), outside)


def test_what_reads_a_value_beside_its_cast_reads_the_value() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.first(x)
            mean = h.float().mean()
            return self.last(torch.relu(h)), mean

    model, x = Beside().eval(), torch.randn(4, 8)
    converted = amprewrite.convert(model, args=(x,))
    relu = next(d for d in converted.plan.decisions if d.canonical == "relu")
    assert relu.precision == "bfloat16"
    assert relative_error(converted(x), model(x)) < 2**-7


def test_a_cast_to_the_same_dtype_shares_its_storage() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.first(x)
            z = y.float()
            z.add_(1)
            y.mul_(3)
            return y, z

    model, x = Writing().eval(), torch.randn(4, 8)
    converted = amprewrite.convert(model, args=(x,))
    with torch.no_grad():
        assert relative_error(converted(x), model(x)) < 2**-7
