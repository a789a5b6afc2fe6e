"""Every operator that torch has samples of: captured, converted and run for real.

Fake tensors are more lenient than kernels: they know no kernel that is missing for a
dtype, and some that refuse mixed dtypes. The oracle is the program that was captured,
with its inputs rounded as the plan rounds them: whatever is not computed in the low
dtype must then be equal to the last bit. By the policies of autocast the last result
also has the dtype that eager autocast gives it.
"""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import amprewrite
from amprewrite.frameworks.torch_fx.compat import pytrees
from tests.oracles.eager_autocast import autocast, first_dtype, other_dtypes
from tests.oracles.opinfo import (
    LOW,
    RULES,
    UNINITIALISED,
    Program,
    export,
    fake_mode,
    name_of,
    op_db,
    rounding,
    samples_of,
    torch_may_warn,
)

pytree = pytrees.pytree

# A program of one operator often has nothing to lower, and float16 is slow here.
pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")

POLICIES = ("bf16", "fp16", "autocast-cpu", "autocast-cuda")

COMPUTING = ("allow", "accumulate", "promote")
"""Classes whose result in the low dtype differs from the full one by rounding."""

LIMITS = {"bfloat16": 0.05, "float16": 0.05 / 8}
"""Relative error (L2) of one operator; float16 has three bits more."""

NOT_CAPTURED = {
    "allclose": "decides by values",
    "corrcoef": "decides by values",
    "cov": "decides by values",
    "equal": "decides by values",
    "jiterator_2inputs_2outputs": "needs a GPU",
    "jiterator_4inputs_with_extra_args": "needs a GPU",
    "jiterator_binary": "needs a GPU",
    "jiterator_binary_return_by_ref": "needs a GPU",
    "jiterator_unary": "needs a GPU",
    "linalg.lstsq": "results whose shape depends on values",
    "linalg.lstsq.grad_oriented": "results whose shape depends on values",
    "nn.functional.ctc_loss": "results whose shape depends on values",
    "nn.functional.gaussian_nll_loss": "decides by values",
}
"""Operators that torch.export cannot capture, and why."""

ONLY_ON_CUDA = {("nn.functional.avg_pool3d", "autocast-cuda")}
"""Where torch has a low kernel for CUDA and none for CPU, the list for CUDA says so."""

RUNS_AS_TRACED = {
    "norm.nuc": "a norm that needs a factorisation, for which there is no low kernel",
    "tensor_split": "the places to split at are values, which fake tensors do not have",
}
"""Operators that are tried under fake tensors, fail, and run as traced."""

LOOSE = {
    "grid_sampler_2d": "torch.autocast rounds the positions, and the error shows it",
    "grid_sampler_3d": "torch.autocast rounds the positions, and the error shows it",
}
"""Operators whose error may be twice as large, and why."""

INFOS = [info for info in op_db() if torch.float32 in info.supported_dtypes("cpu")]


def programs(info) -> Iterator[tuple[Program, tuple[str, ...]]]:
    """The first samples, with all inputs full, all low, and mixed; their policies.

    fp16 extends bf16, and its kernels run where the inputs are low. The lists of
    autocast go by the name of an op, so that one sample tells.
    """
    for number, sample in enumerate(samples_of(info, 2)):
        if number == 0:
            yield (
                Program(info, sample, "none"),
                ("bf16", "autocast-cpu", "autocast-cuda"),
            )
            yield Program(info, sample, "all"), POLICIES
            yield Program(info, sample, "first"), POLICIES
        else:
            yield Program(info, sample, "all"), ("bf16", "fp16")


def run(module, program):
    torch.manual_seed(0)
    with torch_may_warn():
        return module(*program.args)


def reference(captured, program, plan):
    """Run what was captured, with the rounding of the plan where values enter."""
    entries = [d.precision for d in plan.decisions if d.native == LOW]
    with rounding(getattr(torch, dtype) for dtype in entries):
        return run(captured, program)


def as_export_returns(output):
    """Return the output with a plain tuple for its ``torch.Size``.

    The module of an exported program hands back a tuple where the function returned a
    Size (torch 2.13); a conversion hands back what the function did.
    """
    return tuple(output) if isinstance(output, torch.Size) else output


def differences(got, want, limit) -> Iterator[str]:
    leaves, spec = pytree.tree_flatten(as_export_returns(got))
    wanted, wanted_spec = pytree.tree_flatten(want)
    if spec != wanted_spec:
        yield f"structure {spec} instead of {wanted_spec}"
        return
    for x, y in zip(leaves, wanted, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y:
                yield f"{x} instead of {y}"
        elif (x.dtype, x.shape) != (y.dtype, y.shape):
            yield f"{x.dtype} {tuple(x.shape)} instead of {y.dtype} {tuple(y.shape)}"
        elif (error := error_of(x, y)) > limit:
            yield f"relative error {error:.2g} above {limit}"


def error_of(x, y) -> float:
    """Relative error over what is finite in ``y``; inf if it is not so in ``x``."""
    if y.layout is not torch.strided:
        x, y = x.to_dense(), y.to_dense()
    if y.is_complex():
        x, y = (torch.view_as_real(v.cfloat().resolve_conj()) for v in (x, y))
    if x.equal(y):
        return 0.0
    if not y.is_floating_point():
        return float("inf")
    finite = y.isfinite()
    x, y = x[finite], y[finite]
    if not x.isfinite().all():
        return float("inf")
    scale = y.abs().double().norm() or 1.0
    return float((x - y).abs().double().norm() / scale)


def check(exported, captured, program, policy) -> Iterator[str]:
    rules = RULES if program.lowered != "none" else ()
    converted = amprewrite.convert(exported, policy, args=program.args, overrides=rules)
    plan = converted.plan
    if name_of(program.info) not in RUNS_AS_TRACED:
        yield from (line for line in plan.warnings if "(aten." in line)
    low = [d for d in plan.lowered if d.native != LOW and d.op_class in COMPUTING]
    limit = LIMITS[plan.low] if low else 0.0
    limit *= 2 if name_of(program.info) in LOOSE else 1
    if policy.startswith("autocast-") and program.lowered in ("none", "all"):
        yield from other_dtypes(program, plan, policy.removeprefix("autocast-"))
    got = run(converted, program)
    want = reference(captured, program, plan)
    if not program.info.name.startswith(UNINITIALISED):
        yield from differences(got, want, limit)


@pytest.mark.slow
@pytest.mark.parametrize("info", INFOS, ids=name_of)
def test_operator(info):
    wrong, captured = [], 0
    for program, policies in programs(info):
        exported = export(program)
        if exported is None:
            continue
        captured += 1
        module = exported.module(check_guards=False)
        for policy in policies:
            if (name_of(info), policy) in ONLY_ON_CUDA:
                continue
            where = f"{policy}, {program.lowered} low: "
            wrong += [where + line for line in check(exported, module, program, policy)]
    assert bool(captured) == (name_of(info) not in NOT_CAPTURED)
    assert not wrong, "\n".join(wrong)


def test_nearly_all_operators_are_exercised():
    names = {name_of(info) for info in INFOS}
    assert names >= set(NOT_CAPTURED)
    assert len(names) - len(NOT_CAPTURED) > 650


def test_the_comparison_can_fail():
    x = torch.arange(4.0)
    assert not list(differences((x,), (x,), 0.0))
    assert list(differences((x,), [x], 0.0))
    assert list(differences(x.double(), x, 1.0))
    assert list(differences(x + 1e-3, x, 0.0))
    assert not list(differences(x + 1e-3, x, 0.05))
    assert list(differences(x / 0, x, 0.05))
    assert list(differences(x > 2, x > 1, 0.05))


@pytest.mark.parametrize(
    ("device", "softmax"), [("cpu", "bfloat16"), ("cuda", "float32")]
)
def test_fake_tensors_go_through_autocast(device, softmax):
    with fake_mode(), autocast(device):
        product = torch.empty(2, 2, device=device) @ torch.empty(2, 2, device=device)
        assert first_dtype(product) == "bfloat16"
        assert first_dtype(product.softmax(0)) == softmax
        assert first_dtype(product.sin()) == "bfloat16"
    assert not torch.is_autocast_enabled(device)


class _NumberBesideTensor(torch.nn.Module):
    def forward(self, x):
        return 5, x @ x, None


class _Region(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = x.sin()
        return x @ x + y


@pytest.mark.parametrize("model", [_NumberBesideTensor(), _Region()])
def test_found_by_the_sweep(model):
    """Outputs that are no tensors; regions of a program that was exported before."""
    args = (torch.ones(3, 3),)
    exported = torch.export.export(model, args, strict=False)
    got = amprewrite.convert(exported, "bf16", args=args)(*args)
    assert not list(differences(got, model(*args), LIMITS["bfloat16"]))
