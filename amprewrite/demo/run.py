"""Run the demo: load, convert, compare with float64 and with torch's ways, time."""

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from amprewrite.api import convert, verify
from amprewrite.demo.measure import (
    Errors,
    Neighbours,
    Run,
    Timing,
    errors,
    neighbours,
    parameter_bytes,
    timing,
)
from amprewrite.demo.model import Encoder, load, made_up_batch
from amprewrite.demo.sentences import SENTENCES
from amprewrite.plan import Plan
from amprewrite.verify import Report

FULL, AUTOCAST, HALF, OURS = (
    "float32",
    "torch.autocast",
    "model.bfloat16()",
    "amprewrite",
)
"""Names of the variants: unconverted, autocast, cast as a whole, converted."""

SHAPES = ((1, 16), (8, 128))
"""Shapes of the timed inputs, as (sentences, tokens)."""

SECONDS = 6.0
"""Seconds that each input is timed; longer where the least rounds take longer."""


@dataclass(frozen=True)
class Figures:
    """The results of the demo.

    Attributes:
        machine: Name of the processor.
        load: Processes that wanted a core at the end, on average over a minute, for
            each core; None where the system does not say.
        plan: The plan for the sentences' own shape, so that bytes are known.
        report: Report of ``verify`` on the converted model.
        errors: Errors against float64, by variant.
        neighbours: Neighbours against float64, by variant.
        parameter_bytes: Bytes of the parameters, by variant.
        timings: One for each input.
    """

    machine: str
    load: float | None
    plan: Plan
    report: Report
    errors: Mapping[str, Errors]
    neighbours: Mapping[str, Neighbours]
    parameter_bytes: Mapping[str, int]
    timings: tuple[Timing, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON data, with the plan's cost and the error."""
        return {
            "machine": self.machine,
            "load": self.load,
            "cost": asdict(self.plan.cost),
            "error": self.report.error,
            "bound": self.report.bound,
            "errors": {name: asdict(e) for name, e in self.errors.items()},
            "neighbours": {name: asdict(n) for name, n in self.neighbours.items()},
            "parameter_bytes": dict(self.parameter_bytes),
            "timings": [_timing_json(timing) for timing in self.timings],
        }


def _timing_json(found: Timing) -> dict[str, Any]:
    return {
        "batch": found.batch,
        "tokens": found.tokens,
        "milliseconds": {name: found.milliseconds(name) for name in found.seconds},
        "speedup_over_float32": {n: found.speedup(n, FULL) for n in found.seconds},
        "speedup_over_autocast": {n: found.speedup(n, AUTOCAST) for n in found.seconds},
    }


def run(say: Callable[[str], None], seconds: float = SECONDS) -> Figures:
    """Run the whole demo.

    Args:
        say: Called with a line of text at every stage.
        seconds: Seconds that each input of :data:`SHAPES` is timed.

    Raises:
        UnsupportedError: A package of the extra ``demo`` is not installed.
    """
    say(f"loading the encoder and {len(SENTENCES)} sentences")
    model, args = load(SENTENCES)
    say("converting to bf16")
    anywhere = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    converted = convert(model, "bf16", args=args, dynamic_shapes=(anywhere, anywhere))
    half = copy.deepcopy(model).bfloat16()
    variants: dict[str, Run] = {
        FULL: model,
        AUTOCAST: _under_autocast(model),
        HALF: half,
        OURS: converted,
    }
    say("verifying against float64, op by op")
    fixed = convert(model, "bf16", args=args)  # for one shape, so that bytes are known
    report = verify(model, fixed, args)
    with torch.inference_mode():
        say("computing the reference in float64")
        reference = copy.deepcopy(model).double()(*args)
        say("encoding the sentences with each variant")
        vectors = {name: variant(*args) for name, variant in variants.items()}
        timings: list[Timing] = []
        for shape in SHAPES:
            say(f"timing {shape[0]} x {shape[1]} tokens")
            timings.append(timing(variants, made_up_batch(*shape), seconds))
    full, low = parameter_bytes(model), parameter_bytes(half)
    return Figures(
        machine=_machine(),
        load=_load(),
        plan=fixed.plan,
        report=report,
        errors={name: errors(found, reference) for name, found in vectors.items()},
        neighbours={n: neighbours(found, reference) for n, found in vectors.items()},
        parameter_bytes={
            FULL: full,
            AUTOCAST: full,
            HALF: low,
            OURS: parameter_bytes(converted),
        },
        timings=tuple(timings),
    )


def _under_autocast(model: Encoder) -> Run:
    def run_it(*args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args)

    return run_it


def _load() -> float | None:
    if not hasattr(os, "getloadavg"):  # Windows has none
        return None
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _machine() -> str:
    cpu, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"CPU ({cpu}, threads: {threads}) with torch {torch.__version__}"
