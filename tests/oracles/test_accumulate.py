"""Ops of class accumulate add in full precision: the kernels as they are installed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: N812  # torch's own name

import amprewrite
from amprewrite import load_policy
from tests.torch_programs import Program, relative_error

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""One rounding, relative: half a unit in the last place."""


def spread(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


ROWS = spread(16, 4096)
OFFSET = ROWS + 100.0
NEAR_ONE = 1 + 0.01 * ROWS
SCALE, SHIFT = spread(4096).abs() + 0.5, spread(4096)
IMAGES = spread(2, 8, 16, 16) + 3

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "_safe_softmax": (lambda x: torch._safe_softmax(x, -1), (5 * ROWS,)),
    "cumprod": (lambda x: x.cumprod(-1), (NEAR_ONE[:, :64],)),
    "cumsum": (lambda x: x.cumsum(-1), (ROWS.abs(),)),
    "frobenius_norm": (torch.Tensor.norm, (ROWS,)),
    "group_norm": (lambda x: F.group_norm(x, 2), (IMAGES + 100,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4096,), w, b),
                   (OFFSET, SCALE, SHIFT)),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (ROWS,)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (5 * ROWS,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (ROWS,)),
    "mean": (lambda x: x.mean(-1), (OFFSET,)),
    "nansum": (lambda x: x.nansum(-1), (ROWS.abs(),)),
    "norm": (lambda x: x.norm(dim=-1), (ROWS,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4096,), w, 1e-6), (OFFSET, SCALE)),
    "softmax": (lambda x: torch.softmax(x, -1), (5 * ROWS,)),
    "softmin": (lambda x: F.softmin(x, -1), (5 * ROWS,)),
    "std": (lambda x: x.std(-1), (OFFSET,)),
    "std_mean": (lambda x: torch.std_mean(x, -1), (OFFSET,)),
    "sum": (lambda x: x.sum(), (torch.ones(65536),)),
    "var": (lambda x: x.var(-1, keepdim=True), (OFFSET,)),
    "var_mean": (lambda x: torch.var_mean(x, -1), (OFFSET,)),
}  # fmt: skip
"""For each op a call that would be far off if it added in low precision."""


def changed(name: str) -> dict[str, Any]:
    policy = load_policy(name)
    base = load_policy(name.removesuffix("-accumulate"))
    return {op: e for op, e in policy.ops.items() if e != base.ops.get(op)}


@pytest.mark.parametrize("name", ["bf16-accumulate", "fp16-accumulate"])
def test_only_denied_ops_become_accumulate_and_each_is_measured_here(name: str) -> None:
    base = load_policy(name.removesuffix("-accumulate"))
    for op, entry in changed(name).items():
        assert (base.ops[op].op_class, entry.op_class) == ("deny", "accumulate"), op
        assert entry.why
        assert op in CASES
    assert load_policy(name).low == base.low


@pytest.mark.parametrize(
    ("policy", "op"),
    [(p, op) for p in ("bf16-accumulate", "fp16-accumulate") for op in changed(p)],
)
def test_a_low_kernel_rounds_its_result_once(policy: str, op: str) -> None:
    call, given = CASES[op]
    low = load_policy(policy).low
    args = [x.to(getattr(torch, low)) for x in given]
    found, exact = call(*args), call(*(x.double() for x in args))
    assert relative_error(found, exact) < 0.55 * 2 * ROUNDING[low]
    leaves = found if isinstance(found, tuple) else (found,)
    assert {str(leaf.dtype) for leaf in leaves} == {f"torch.{low}"}


@pytest.mark.parametrize("op", ["rms_norm", "softmax", "sum", "var"])
def test_a_converted_op_reads_and_writes_low(op: str) -> None:
    """Between two contractions, with an identity before and a sum of rows after."""
    call, given = CASES[op]
    given = tuple(part[..., :256] for part in (OFFSET, *given[1:]))
    if op == "rms_norm":
        call = rms_norm
    if op == "sum":
        call = total

    def forward(m: Any, x: Any) -> Any:
        return call(x @ m.eye, *m.rest).mT @ m.ones

    parts = {"eye": torch.eye(256), "ones": torch.ones(16, 8)}
    model: Any = Program(forward, **parts).eval()
    model.rest = given[1:]
    program = amprewrite.convert(model, "bf16-accumulate", args=(given[0],))
    (decision,) = (d for d in program.plan.decisions if d.canonical == op)
    assert (decision.op_class, decision.precision) == ("accumulate", "bfloat16")
    assert set(decision.results) == {"bfloat16"}
    exact = (
        call(*(x.bfloat16().double() for x in given)).mT @ torch.ones(16, 8).double()
    )
    with torch.no_grad():
        found = program(given[0])
    assert relative_error(found, exact) < 2 * ROUNDING["bfloat16"]


def rms_norm(x: Any, scale: Any) -> Any:
    return F.rms_norm(x, (256,), scale, 1e-6)


def total(x: Any) -> Any:
    return x.sum(-1, keepdim=True)


def fast_norm(m: Any, x: Any) -> Any:
    h = m.a(x)
    mean = h.mean(-1, keepdim=True)
    variance = (h * h).mean(-1, keepdim=True) - mean * mean
    return (h - mean) * torch.rsqrt(variance + 1e-5)


@pytest.mark.parametrize("placement", ["promote", "optimal"])
def test_a_statistic_that_is_wanted_full_is_not_rounded(placement: str) -> None:
    """The difference of two rounded means of squares would be noise."""
    model: Any = Program(fast_norm, a=torch.nn.Linear(256, 256)).eval()
    with torch.no_grad():
        model.a.bias.add_(100)
    x = spread(256, 256)
    exact = copy.deepcopy(model).double()(x.double())
    strict, loose = (
        amprewrite.convert(model, policy, args=(x,), placement=placement)
        for policy in ("bf16", "bf16-accumulate")
    )
    with torch.no_grad():
        error = relative_error(strict(x), exact)
        assert relative_error(loose(x), exact) < 1.2 * error
    means = [d for d in loose.plan.decisions if d.canonical == "mean"]
    assert {(d.op_class, d.precision) for d in means} == {("accumulate", "float32")}
