"""Models of mixed dtypes under the policy ``promote``: JAX's promotion."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import amprewrite
from amprewrite.dtypes import result_type
from amprewrite.errors import (
    AmpError,
    ComplexTruncationError,
    NotCapturedError,
    PolicyError,
    PromotionError,
)
from tests.torch_programs import Call

FLOATS = ("float16", "bfloat16", "float32", "float64")
INDEX = torch.tensor([0, 2])


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made).to(getattr(torch, dtype))


def name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


TWO: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "add": (torch.add, (4, 8), (4, 8)),
    "baddbmm": (lambda x, y: torch.baddbmm(x, x, y), (2, 8, 8), (2, 8, 8)),
    "bmm": (torch.bmm, (2, 4, 8), (2, 8, 3)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (4, 8), (4, 2)),
    "cdist": (torch.cdist, (4, 8), (3, 8)),
    "conv1d": (F.conv1d, (2, 3, 9), (4, 3, 3)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 3, 9), (3, 4, 3)),
    "div": (torch.div, (4, 8), (4, 8)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (4, 8), (3, 8)),
    "linear": (F.linear, (4, 8), (3, 8)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), (4, 8), (4, 8)),
    "matmul": (torch.matmul, (4, 8), (8, 3)),
    "maximum": (torch.maximum, (4, 8), (4, 8)),
    "mse_loss": (F.mse_loss, (4, 8), (4, 8)),
    "mul": (torch.mul, (4, 8), (8,)),
    "outer": (torch.outer, (4,), (3,)),
    "sdpa": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y),
        (2, 4, 8),
        (2, 5, 8),
    ),
    "stack": (lambda x, y: torch.stack([x, y]), (4, 8), (4, 8)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (4, 8), (4, 8)),
}
"""Functions of two arrays, and the shapes of those."""

PAIRS = list(itertools.permutations(FLOATS[1:], 2))


@pytest.mark.parametrize("op", TWO)
def test_an_op_gives_what_jax_would_give(op: str) -> None:
    function, *shapes = TWO[op]
    for pair in PAIRS:
        args = tuple(
            drawn(*shape, dtype=dtype, seed=seed)
            for seed, (shape, dtype) in enumerate(zip(shapes, pair, strict=True))
        )
        wanted = result_type(*pair, system="jax", x64=True).dtype
        converted = amprewrite.convert(Call(function), "promote", args=args)
        found = converted(*args)
        expected = function(*(x.to(getattr(torch, wanted)) for x in args))
        assert name(found.dtype) == wanted, pair
        assert torch.equal(found, expected), pair
        assert converted.plan.casts, pair


WRITES: dict[str, Callable[..., Tensor]] = {
    "index_put": lambda x, y: x.index_put((INDEX,), y),
    "index_add": lambda x, y: x.index_add(0, INDEX, y),
    "index_copy": lambda x, y: x.index_copy(0, INDEX, y),
    "scatter_add": lambda x, y: x.scatter_add(0, INDEX[:, None].expand(2, 8), y),
    "setitem": lambda x, y: x.clone().index_put_((INDEX,), y),
    "masked_scatter": lambda x, y: x.masked_scatter(x[:, :1] > 9, y),
}
"""What is written into an array takes the dtype of that array."""


@pytest.mark.parametrize("op", WRITES)
def test_what_is_written_takes_the_dtype_of_what_it_is_written_to(op: str) -> None:
    for pair in PAIRS:
        args = (drawn(4, 8, dtype=pair[0]), drawn(2, 8, dtype=pair[1], seed=1))
        found = amprewrite.convert(Call(WRITES[op]), "promote", args=args)(*args)
        assert name(found.dtype) == pair[0]
        assert torch.equal(found, WRITES[op](args[0], args[1].to(args[0].dtype)))


class Mixed(nn.Module):
    """Parts of four dtypes, integer ids, a boolean mask and a float64 tail."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16).bfloat16()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True).half()
        self.rnn = nn.GRU(16, 16, batch_first=True).bfloat16()
        self.head = nn.Linear(16, 4).double()

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.first(x) + self.second(x) + self.table(ids))
        z, _ = self.attention(y, y, y)
        z, _ = self.rnn(torch.where(ids[..., None] > 10, y, z))
        logits = self.head(z) + ids[..., None] * 0.5
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten() % 4)
        return logits, loss


@pytest.fixture
def mixed() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 5))
    return Mixed(), (drawn(2, 5, 16, dtype="float16"), ids)


def test_a_model_of_mixed_dtypes_runs(mixed: Any) -> None:
    model, args = mixed
    model.eval()
    with pytest.raises((RuntimeError, ValueError), match="dtype"):
        model(*args)
    converted = amprewrite.convert(model, "promote", args=args)
    logits, loss = converted(*args)
    assert (logits.dtype, loss.dtype) == (torch.float64, torch.float64)
    same = {k: v.dtype for k, v in model.state_dict().items()}
    assert {k: v.dtype for k, v in converted.state_dict().items()} == same
    reference = Mixed().double()
    reference.load_state_dict(model.state_dict())
    with torch.no_grad():
        exact, _ = reference.eval()(args[0].double(), args[1])
    assert (logits - exact).norm() / exact.norm() < 1e-6
    casts = converted.plan.casts
    folded = {cast.value for cast in casts if cast.folding == "copy"}
    assert {"second_weight", "second_bias", "attention_in_proj_weight"} <= folded
    run = {cast.value for cast in converted.plan.runtime_casts}
    assert not [name for name in run if "weight" in name or "bias" in name]


def test_every_promotion_is_in_the_plan_with_its_reason(mixed: Any) -> None:
    model, args = mixed
    plan = amprewrite.inspect(model.eval(), "promote", args=args)
    found = {(c.value, c.from_dtype, c.to_dtype): c.consumers for c in plan.casts}
    assert found["x", "float16", "float32"] == ("linear", "linear_1")
    decision = plan.by_op["linear_1"]
    assert decision.rule == "promotion"
    assert decision.op_class == "promote"
    assert decision.why == "float16 and bfloat16 promote to float32"
    assert decision.path == "second"
    kept = [d for d in plan.decisions if d.rule != "promotion"]
    assert {d.op_class for d in kept} == {"keep"}


def test_training_gives_gradients_in_the_dtypes_of_the_parameters(mixed: Any) -> None:
    model, args = mixed
    converted = amprewrite.convert(model.train(), "promote", args=args)
    converted(*args)[1].backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.dtype == parameter.dtype
        assert parameter.grad.isfinite().all()


def test_a_model_of_one_dtype_comes_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    x = drawn(4, 8)
    converted = amprewrite.convert(model.eval(), "promote", args=(x,))
    assert converted.plan.casts == ()
    assert torch.equal(converted(x), model(x))


def test_0d_tensors_are_strong_as_in_jax_and_adapt_as_in_torch(tmp_path: Any) -> None:
    args = (drawn(4, dtype="bfloat16"), torch.tensor(2.0))
    by_jax = amprewrite.convert(Call(torch.mul), "promote", args=args)
    assert by_jax(*args).dtype == torch.float32
    file = tmp_path / "torch.toml"
    file.write_text('extends = "promote"\n[promotion]\nsystem = "torch"\n')
    by_torch = amprewrite.convert(Call(torch.mul), file, args=args)
    assert by_torch(*args).dtype == torch.bfloat16
    assert by_torch.plan.casts == ()


def test_norms_take_parameters_and_statistics_of_other_dtypes() -> None:
    parts = (
        nn.Conv2d(3, 4, 3).half(),
        nn.BatchNorm2d(4).bfloat16(),
        nn.GroupNorm(2, 4),
    )
    model = nn.Sequential(*parts).eval()
    x = drawn(2, 3, 8, 8)
    converted = amprewrite.convert(model, "promote", args=(x,))
    assert torch.equal(converted(x), model.float()(x))
    state = converted.state_dict()
    assert state["1.running_mean"].dtype == torch.bfloat16


def test_halves_are_traced_as_halves_beside_a_full_model() -> None:
    """Autocast, even to float32, widens what cat and index_copy read."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, y]), x.index_copy(0, INDEX, y)

    args = (drawn(4, 8, dtype="float16"), drawn(2, 8, dtype="float16"))
    plan = amprewrite.inspect(Call(program), "bf16", args=args)
    found = {d.canonical: d.results for d in plan.decisions}
    assert found["cat"] == found["index_copy"] == ("float16",)


def test_a_constant_is_promoted() -> None:
    constant = drawn(4, 4)
    args = (drawn(4, 4, dtype="float64"),)
    converted = amprewrite.convert(Call(lambda x: x @ constant), "promote", args=args)
    assert torch.equal(converted(*args), args[0] @ constant.double())


def test_numbers_adapt() -> None:
    args = (drawn(4, dtype="bfloat16"),)
    converted = amprewrite.convert(Call(lambda x: x * 2.0 + 1), "promote", args=args)
    assert converted(*args).dtype == torch.bfloat16
    assert converted.plan.casts == ()


def test_a_float_mask_takes_the_dtype_of_attention() -> None:
    def attend(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    shape = (2, 4, 8)
    args = (drawn(*shape, dtype="bfloat16"), drawn(*shape), drawn(4, 4).double())
    found = amprewrite.convert(Call(attend), "promote", args=args)(*args)
    expected = attend(args[0].float(), args[1], args[2].float())
    assert torch.equal(found, expected)


def test_regions_without_gradients_are_promoted_too() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            z = x @ y
        return z @ y

    args = (drawn(4, 4, dtype="bfloat16"), drawn(4, 4))
    found = amprewrite.convert(Call(program), "promote", args=args)(*args)
    assert torch.equal(found, args[0].float() @ args[1] @ args[1])


def test_extents_may_vary() -> None:
    batch = torch.export.Dim("batch", min=2)
    model = nn.Linear(8, 2).bfloat16().eval()
    converted = amprewrite.convert(
        model, "promote", args=(drawn(4, 8),), dynamic_shapes=({0: batch},)
    )
    assert converted(drawn(7, 8)).shape == (7, 2)


def test_a_policy_may_lower_and_promote(tmp_path: Any) -> None:
    file = tmp_path / "both.toml"
    file.write_text('extends = "bf16"\n[promotion]\nsystem = "jax"\n')
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).double(), nn.Softmax(-1))
    converted = amprewrite.convert(model.eval(), file, args=(drawn(4, 8),))
    assert converted.plan.by_op["linear"].precision == "bfloat16"
    assert converted.plan.by_op["linear_1"].precision == "float64"
    assert converted(drawn(4, 8)).dtype == torch.float64


def test_complex_branches_keep_their_dtypes() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.fft(x)
        return spectrum @ w, (spectrum * w[0]).abs()

    args = (drawn(4, 8), drawn(8, 8, dtype="float64"))
    product, size = amprewrite.convert(Call(program), "promote", args=args)(*args)
    assert (product.dtype, size.dtype) == (torch.complex128, torch.float64)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda z: F.softmax(z, -1), "softmax: found an operand of complex64"),
        (
            lambda z: F.scaled_dot_product_attention(z, z, z),
            "attention: found an operand of complex64",
        ),
    ],
)
def test_what_means_nothing_for_complex_numbers_is_refused(
    function: Any, found: str
) -> None:
    z = torch.complex(drawn(2, 4, 8), drawn(2, 4, 8, seed=1))
    with pytest.raises(PromotionError, match=found):
        amprewrite.convert(Call(function), "promote", args=(z,))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_an_imaginary_part_is_not_dropped_unless_the_policy_says_so(
    tmp_path: Any,
) -> None:
    class Truncating(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.to(torch.float32) + 1

    z = torch.complex(drawn(4), drawn(4, seed=1))
    with pytest.raises(ComplexTruncationError, match=r"test_promote_policy\.py:\d+: "):
        amprewrite.convert(Truncating(), "promote", args=(z,))
    file = tmp_path / "truncating.toml"
    file.write_text('extends = "promote"\n[promotion]\ntruncate_complex = true\n')
    converted = amprewrite.convert(Truncating(), file, args=(z,))
    assert torch.equal(converted(z), z.real + 1)


def test_a_pair_without_a_common_dtype_is_named_with_its_place() -> None:
    args = (drawn(4, 8).to(torch.float8_e4m3fn), drawn(4, 8, dtype="bfloat16"))
    with pytest.raises(PromotionError) as caught:
        amprewrite.convert(Call(lambda x, y: x + y), "promote", args=args)
    for part in ("test_promote_policy.py:", "add", "float8_e4m3fn", "bfloat16", "jax"):
        assert part in str(caught.value)


def test_without_arguments_each_signature_is_captured_at_its_first_call() -> None:
    first, last = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 2)
    model = nn.Sequential(first, nn.ReLU(), last)
    late = amprewrite.convert(model, "promote")
    with pytest.raises(NotCapturedError):
        late.plan  # noqa: B018  # raises
    x = drawn(3, 4)
    for given in (x, drawn(5, 4), x):
        now = amprewrite.convert(model, "promote", args=(given,))
        assert torch.equal(late(given), now(given))
    assert len(late.plans) == 2
    before = late(x)
    with torch.no_grad():
        last.weight.mul_(2)  # the parameters are the model's own
        last.bias.mul_(2)
    assert torch.equal(late(x), 2 * before)
    late(x).sum().backward()
    assert first.weight.grad is not None
    assert first.weight.grad.dtype == torch.bfloat16


def test_an_unknown_system_has_a_hint(tmp_path: Any) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('extends = "promote"\n[promotion]\nsystem = "numpi"\n')
    with pytest.raises(PolicyError, match="did you mean 'numpy'"):
        amprewrite.convert(nn.Linear(2, 2), file, args=(drawn(1, 2),))


def test_a_system_that_asks_for_values_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "values.toml"
    file.write_text('extends = "promote"\n[promotion]\nsystem = "numpy1"\n')
    with pytest.raises(PolicyError, match="'numpy1' asks for values, which a plan"):
        amprewrite.load_policy(file)


def test_without_promotion_the_capture_says_what_would_help(mixed: Any) -> None:
    model, args = mixed
    with pytest.raises(AmpError, match='policy="promote"'):
        amprewrite.convert(model.eval(), "bf16", args=args)


@pytest.mark.parametrize("exponent", ["float32", "float64", "int64"])
def test_a_number_is_raised_to_a_tensor(exponent: str) -> None:
    def forward(x: Tensor) -> Tensor:
        steps = torch.arange(8, dtype=getattr(torch, exponent))
        return x * 2.0**steps + (10000.0 ** (torch.arange(8) / 8)).rsqrt()

    x = drawn(4, 8)
    program = amprewrite.convert(Call(forward), "promote", args=(x,))
    torch.testing.assert_close(program(x), forward(x))


def test_a_model_that_autograd_refuses_runs_without_gradients() -> None:
    def forward(x: Tensor) -> Tensor:
        one, other = x.exp().chunk(2)
        one.copy_(other.double())
        return one * 2

    x = drawn(4, 8).requires_grad_()
    for args in ((x,), None):
        program = amprewrite.convert(Call(forward), "promote", args=args)
        with torch.no_grad():
            torch.testing.assert_close(program(x), forward(x))


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (8, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (3, 4, 5, 5)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    "no parameters": (lambda: nn.BatchNorm1d(4, affine=False), (8, 4)),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        (2, 4, 5, 5),
    ),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (8, 4)),
}
CLOSE = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""Largest error by the coarser dtype; float32 statistics are kept in float32."""


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_of_any_dtype_take_any_dtype(norm: str, *, training: bool) -> None:
    """A state keeps its dtype; what is computed is promoted."""
    make, shape = NORMS[norm]
    for own, given in itertools.permutations(FLOATS, 2):
        model = make().train(training)
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.copy_(tensor + torch.rand(tensor.shape) * 0.5)
        model = model.to(getattr(torch, own))
        exact = make().double().train(training)
        exact.load_state_dict(model.state_dict())
        x = drawn(*shape, dtype=given)
        program = amprewrite.convert(model, "promote", args=(x,))
        bound = max(CLOSE[own], CLOSE[given])
        wanted = exact(x.double())
        torch.testing.assert_close(program(x).double(), wanted, atol=bound, rtol=bound)
        for name, full in exact.named_buffers():
            held = program.get_buffer(name)
            assert held.dtype in (getattr(torch, own), torch.int64)
            torch.testing.assert_close(
                held.double(), full.double(), atol=bound, rtol=bound
            )
