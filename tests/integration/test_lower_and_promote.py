"""A policy that lowers and promotes: each class of op, with each dtype of an input."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import amprewrite
from tests.torch_programs import Program

LOW, FULL = "bfloat16", "float32"
DTYPES = ("bfloat16", "float16", "float32", "int32", "float64")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "both.toml"
    file.write_text('extends = "bf16"\n[promotion]\nsystem = "jax"\n')
    return file


def drawn(*shape: int, dtype: str = FULL) -> Any:
    made = torch.Generator().manual_seed(sum(shape))
    return (3 * torch.randn(*shape, generator=made)).to(getattr(torch, dtype))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(drawn(*shape))


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 64)


PROGRAMS: dict[str, tuple[nn.Module, str, str]] = {
    "linear": (Program(lambda s, x: s.l(x), l=layer()), "linear", LOW),
    "matmul": (Program(lambda s, x: x @ s.w, w=parameter(64, 64)), "matmul", LOW),
    "deny": (
        Program(lambda s, x: torch.logaddexp(x, s.w), w=parameter(64)),
        "logaddexp",
        FULL,
    ),
    "move": (Program(lambda s, x: torch.cat([s.l(x), x]), l=layer()), "cat", ""),
    "unknown": (Program(lambda s, x: torch.hypot(x, s.w), w=parameter(64)), "", FULL),
}
"""For each: the program, an op in it, and its precision where nothing is float64."""


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("placement", ["promote", "optimal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_is_of_its_class_whatever_dtype_comes_in(
    name: str, dtype: str, placement: str, policy: Path
) -> None:
    model, canonical, wanted = PROGRAMS[name]
    model.eval()
    x = drawn(8, 64, dtype=dtype)
    converted = amprewrite.convert(model, policy, args=(x,), placement=placement)
    found = converted(x)
    expected = amprewrite.convert(model, "promote", args=(x,))(x)
    assert found.dtype == expected.dtype
    assert (found - expected).norm() <= 2e-2 * expected.norm()
    cost = converted.plan.cost
    assert cost.lower_bound in (None, cost.total_bytes)
    if wanted and canonical and placement == "promote" and dtype != "float64":
        precisions = {
            d.precision for d in converted.plan.decisions if d.canonical == canonical
        }
        assert precisions == {wanted}


@pytest.mark.parametrize("dtype", [LOW, FULL])
@pytest.mark.parametrize("training", ["training", ""])
def test_a_promote_op_is_as_wide_as_what_reaches_it(
    dtype: str, training: str, policy: Path
) -> None:
    model = Program(lambda s, x: s.l(s.l(x) * x), l=layer()).train(bool(training))
    plan = amprewrite.inspect(model, policy, args=(drawn(8, 64, dtype=dtype),))
    assert plan.by_op["mul"].precision == dtype
    assert {d.precision for d in plan.decisions if d.canonical == "linear"} == {LOW}


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_a_low_linear_computes_what_a_low_layer_does(dtype: str, policy: Path) -> None:
    model, x = layer().eval(), drawn(8, 64, dtype=dtype)
    found = amprewrite.convert(model, policy, args=(x,))(x)
    low = nn.functional.linear(
        x.bfloat16(), *(p.detach().bfloat16() for p in model.parameters())
    )
    assert torch.equal(found, low.float())


def test_a_low_input_is_not_cast_for_a_low_op(policy: Path) -> None:
    plan = amprewrite.inspect(
        layer().eval(), policy, args=(drawn(8, 64, dtype=LOW),), placement="promote"
    )
    assert [cast.value for cast in plan.casts if not cast.is_weight] == ["linear"]
    (decision,) = plan.decisions
    assert decision.operands == (LOW,) * 3
    assert "bfloat16 and float32 promote to float32" in decision.why


def test_integers_keep_a_promoting_op_full(policy: Path) -> None:
    model = Program(lambda s, x, n: s.l(x) + n, l=layer()).eval()
    args = (drawn(8, 64), torch.arange(1000, 1064, dtype=torch.int32))
    plan = amprewrite.inspect(model, policy, args=args)
    assert plan.by_op["add"].precision == FULL


def test_what_is_written_into_keeps_its_dtype(policy: Path) -> None:
    def program(_: Any, x: Any, y: Any) -> Any:
        return x.clone().index_put_((torch.tensor([0]),), y[:1]) @ y.float().T

    args = (drawn(8, 64), drawn(8, 64, dtype=LOW))
    converted = amprewrite.convert(Program(program).eval(), policy, args=args)
    expected = amprewrite.convert(Program(program).eval(), "promote", args=args)(*args)
    assert converted.plan.by_op["index_put_"].precision == FULL
    assert (converted(*args) - expected).norm() <= 2e-2 * expected.norm()
