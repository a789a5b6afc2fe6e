"""Random torch programs: the converted one is the same program, but for rounding."""

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import AmpWarning, CaptureError
from tests.fuzzing import seeds
from tests.properties.torch_runs import Traces, differences, error, floats, run
from tests.properties.torch_sources import Source, inputs, program

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]

EXACT = replace(amprewrite.load_policy("bf16"), low="float32", full="float64")
"""The policy bf16 one step up: what differs by more than 1e-4 is no rounding."""

POLICIES = ("bf16", "exact", "fp16", "bf16-accumulate", "exact", "autocast-cpu", "off")
PLACEMENTS = ("promote", "optimal", "promote", "paint")
EXACT_BOUND = 1e-4
"""Of float32 in float64: 2^-24, times condition numbers up to 1000."""


@dataclass(frozen=True)
class Way:
    """How a program is converted."""

    policy: str
    placement: str
    lazy: bool
    training: bool


def way(seed: int) -> Way:
    """Return one way of converting; the seeds go through all of them."""
    policy = POLICIES[seed % len(POLICIES)]
    placement = PLACEMENTS[seed // len(POLICIES) % len(PLACEMENTS)]
    rest = seed // (len(POLICIES) * len(PLACEMENTS))
    return Way(policy, placement, lazy=seed % 5 == 0, training=rest % 3 == 0)


def built(source: Source, chosen: Way, *, plain: bool = False) -> nn.Module:
    module = source.build(plain=plain)
    return module.double() if chosen.policy == "exact" else module


def given(source: Source, chosen: Way) -> tuple[Any, ...]:
    x, y, k = inputs(source.seed)
    return (x.double(), y.double(), k) if chosen.policy == "exact" else (x, y, k)


def converted(source: Source, chosen: Way) -> nn.Module:
    policy: Any = EXACT if chosen.policy == "exact" else chosen.policy
    args = None if chosen.lazy else given(source, chosen)
    return amprewrite.convert(
        built(source, chosen),
        policy,
        args=args,
        placement=chosen.placement,
        training=chosen.training,
    )


def lowest(source: Source, chosen: Way, full: Traces) -> float:
    """Return the error of what else could be used: autocast, and rounded weights."""
    low = torch.float16 if chosen.policy == "fp16" else torch.bfloat16
    args = given(source, chosen)
    found = [0.0]
    try:
        with torch.autocast("cpu", low):
            module = built(source, chosen, plain=not chosen.training)
            found.append(error(run(module, args, backward=chosen.training), full))
    except RuntimeError:  # autocast refuses writes and kernels of two dtypes
        pass
    rounded = built(source, chosen, plain=not chosen.training)
    with torch.no_grad():
        for held in (*rounded.parameters(), *rounded.buffers()):
            if held.is_floating_point():
                held.copy_(held.to(low))
    coarse = tuple(a.to(low).to(a.dtype) if a.is_floating_point() else a for a in args)
    found.append(error(run(rounded, coarse, backward=chosen.training), full))
    return max(found)


def bound(source: Source, chosen: Way, full: Traces) -> float:
    if chosen.policy in ("off", "exact"):
        return {"off": 0.0, "exact": EXACT_BOUND}[chosen.policy]
    return 3 * lowest(source, chosen, full) + len(source.lines) * 2.0**-8


def refused(source: Source, chosen: Way) -> bool:
    """Whether torch itself can neither run nor capture the program."""
    args = given(source, chosen)
    try:
        torch.export.export(built(source, chosen), copy.deepcopy(args), strict=False)
    except Exception:  # noqa: BLE001  # whatever torch says
        return True
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", seeds(70, 2000))
def test_a_converted_program_differs_by_rounding_alone(seed):
    chosen = way(seed)
    source = program(seed, training=chosen.training)
    shown = f"{chosen}\n{source.text}"
    args = given(source, chosen)
    try:
        # Gradients of torch's own while_loop are not those of the loop in Python.
        whole = built(source, chosen, plain=not chosen.training)
        full = run(whole, args, backward=chosen.training)
    except RuntimeError:  # writes to what the backward pass needs
        pytest.skip("torch itself does not train this program")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmpWarning)
        try:
            module = converted(source, chosen)
            ours = run(module, args, backward=chosen.training)
        except CaptureError as failed:
            if not refused(source, chosen):
                failed.add_note(shown)
                raise
            pytest.skip(f"torch cannot capture this program: {failed}")
        except Exception as failed:
            failed.add_note(shown)
            raise
    # Placement paint lowers views of inputs too, whose casts are tensors of their own.
    aliases = chosen.placement != "paint"
    assert not list(differences(ours, full, aliases=aliases)), shown
    assert all(tensor.isfinite().all() for tensor in floats(ours)), shown
    assert error(ours, full) <= bound(source, chosen, full), shown
