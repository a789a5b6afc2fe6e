"""Complex numbers in torch: neither truncated nor put in order, whatever lowers."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import amprewrite
from amprewrite.errors import ComplexTruncationError, PromotionError
from tests.torch_programs import Call

POLICIES = ("bf16", "fp16", "bf16-accumulate", "autocast-cpu", "promote")
Z = torch.complex(torch.arange(16.0).view(2, 8), torch.ones(2, 8))
X = torch.ones(2, 8)


class Layered(nn.Module):
    """A module with a name for the op, and a layer to lower."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner = Call(function)
        self.layer = nn.Linear(8, 8)

    def forward(self, *args: Tensor) -> Tensor:
        made = self.inner(*args)
        return self.layer(made if made.dtype == torch.float32 else made.abs().float())


def _with_row(x: Tensor, z: Tensor) -> Tensor:
    x[0] = z[0]
    return x


TRUNCATING: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "cast": (lambda z: z.to(torch.float32), (Z,)),
    "float": (lambda z: z.float(), (Z,)),
    "half": (lambda z: z.half(), (Z,)),
    "int": (lambda z: z.to(torch.int32), (Z,)),
    "type_as": (lambda z, x: z.type_as(x), (Z, X)),
    "copy": (lambda z, x: x.clone().copy_(z), (Z, X)),
    "a row": (lambda z, x: _with_row(x.clone(), z), (Z, X)),
    "slice": (lambda z, x: torch.slice_scatter(x, z, 0), (Z, X)),
    "sum": (lambda z: z.sum(-1, keepdim=True, dtype=torch.float32) + X, (Z,)),
    "mean": (lambda z: z.mean(-1, keepdim=True, dtype=torch.float32) + X, (Z,)),
    "cumsum": (lambda z: z.cumsum(-1, dtype=torch.float32), (Z,)),
}
ORDERING: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda z: F.softmax(z, -1),
    "softmax with a dtype": lambda z: F.softmax(z, -1, dtype=torch.float32),
    "log_softmax": lambda z: F.log_softmax(z, -1),
    "attention": lambda z: F.scaled_dot_product_attention(z[None], z[None], z[None])[0],
    "logsumexp": lambda z: torch.logsumexp(z, -1, keepdim=True) + X,
}

LEGAL: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "abs": torch.abs,
    "angle": torch.angle,
    "norm": lambda z: z.norm(dim=-1, keepdim=True) + X,
    "var": lambda z: z.var(-1, keepdim=True) + X,
    "a bool": lambda z: z.to(torch.bool).float(),
    "a comparison": lambda z: (z == 0).float(),
    "zeros_like": lambda z: torch.zeros_like(z, dtype=torch.float32),
    "randn_like": lambda z: torch.randn_like(z, dtype=torch.float32) * 0,
    "view_as_real": lambda z: torch.view_as_real(z)[..., 0],
    "view": lambda z: z.view(torch.float32)[..., :8],
    "matmul": lambda z: (z @ z.mH @ z).abs(),
    "fft": lambda z: torch.fft.ifft(torch.fft.fft(z)).real,
    "irfft": lambda z: torch.fft.irfft(torch.fft.rfft(z.real)),
    "softmax of the real part": lambda z: F.softmax(z.real, -1),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.filterwarnings("ignore:float16 on a CPU")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TRUNCATING)
def test_no_op_drops_an_imaginary_part(name: str, policy: str) -> None:
    function, args = TRUNCATING[name]
    where = r"\.py:\d+: .*: found a cast of complex64 to"
    with pytest.raises(ComplexTruncationError, match=where):
        amprewrite.convert(Layered(function).eval(), policy, args=args)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_the_module_is_named() -> None:
    model = nn.Sequential(Layered(TRUNCATING["cast"][0]))
    where = r"\.py:\d+: 0\.inner: cast: found a cast of complex64 to float32: it drops"
    with pytest.raises(ComplexTruncationError, match=where):
        amprewrite.convert(model.eval(), args=(Z,))


@pytest.mark.filterwarnings("ignore:float16 on a CPU")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ORDERING)
def test_no_op_puts_complex_numbers_in_order(name: str, policy: str) -> None:
    where = r"\.py:\d+: inner: \w+: found an operand of complex64"
    with pytest.raises(PromotionError, match=where):
        amprewrite.convert(Layered(ORDERING[name]).eval(), policy, args=(Z,))


@pytest.mark.filterwarnings("ignore:float16 on a CPU")
@pytest.mark.parametrize("policy", [*POLICIES, "off"])
@pytest.mark.parametrize("name", LEGAL)
def test_what_means_something_is_converted(name: str, policy: str) -> None:
    model = Layered(LEGAL[name]).eval()
    converted = amprewrite.convert(model, policy, args=(Z,))
    found, expected = converted(Z), model(Z)
    assert found.dtype == expected.dtype
    rtol = 1e-6 if policy in ("promote", "off") else 2e-2
    assert (found - expected).norm() <= rtol * expected.norm()


@pytest.mark.filterwarnings("ignore:float16 on a CPU", "ignore:rewritten 0 of")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_complex_stays_complex(policy: str) -> None:
    weight = torch.complex(torch.ones(8, 8), X[:1].expand(8, 8))
    model = Call(lambda z: F.linear(z, weight) + torch.fft.fft(z))
    converted = amprewrite.convert(model, policy, args=(Z,))
    assert torch.equal(converted(Z), model(Z))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_under_off_nothing_is_refused() -> None:
    model = Layered(TRUNCATING["cast"][0]).eval()
    converted = amprewrite.convert(model, "off", args=(Z,))
    assert torch.equal(converted(Z), model(Z))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_policy_may_allow_truncation(tmp_path: Any) -> None:
    file = tmp_path / "truncating.toml"
    file.write_text('extends = "bf16"\n[promotion]\ntruncate_complex = true\n')
    model = Layered(TRUNCATING["cast"][0]).eval()
    converted = amprewrite.convert(model, file, args=(Z,))
    low = nn.functional.linear(
        Z.real.bfloat16(), model.layer.weight.bfloat16(), model.layer.bias.bfloat16()
    )
    assert torch.equal(converted(Z), low.float())


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_first_call_refuses_too() -> None:
    converted = amprewrite.convert(Layered(TRUNCATING["cast"][0]).eval(), "bf16")
    with pytest.raises(ComplexTruncationError, match="found a cast of complex64"):
        converted(Z)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("placement", ["optimal", "paint"])
def test_every_placement_refuses(placement: str) -> None:
    model = Layered(TRUNCATING["cast"][0]).eval()
    with pytest.raises(ComplexTruncationError, match="found a cast of complex64"):
        amprewrite.convert(model, args=(Z,), placement=placement)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_tolerance_does_not_hide_it() -> None:
    model = Layered(TRUNCATING["cast"][0]).eval()
    with pytest.raises(ComplexTruncationError, match="found a cast of complex64"):
        amprewrite.convert(model, args=(Z,), placement="optimal", tolerance=1e-1)
