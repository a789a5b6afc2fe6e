"""Eager and compiled speed against float32, torch.autocast and cast-everything.

Every variant of one model runs interleaved in one process; the figures are ratios of
medians. On a CPU the clock is the processor time of one thread, which other programs on
the machine do not disturb; on a GPU it is the device's own event clock.

    python -m benchmarks.speed --out benchmarks/results/speed-cpu.json
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import amprewrite
from benchmarks import zoo

SHAPES = {"16 tokens": (1, 16), "1024 tokens": (8, 128)}
"""Batch and length of the sequences; images take the batch."""

MODELS = ("minilm", "bert", "gpt2", "llama", "t5", "vit", "resnet", "unet", "lstm")
"""Models timed by default; more with --models."""

Run = Callable[[], object]


def _clock(device: str) -> Callable[[Run], float]:
    if device == "cpu":

        def timed(run: Run) -> float:
            start = time.thread_time()
            run()
            return time.thread_time() - start

        return timed

    def timed_on_device(run: Run) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3

    return timed_on_device


def _move(value: object, device: str) -> object:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _cast(value: object) -> object:
    """Return an argument of ``model.bfloat16()``."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.bfloat16()
    return value


def variants(
    name: str, shape: tuple[int, int], device: str, *, compiled: bool
) -> dict[str, Run]:
    """Return the variants of one model, each as a call without arguments."""
    model, args, kwargs = zoo.build(name, zoo.BASE, *shape)
    model = model.to(device)
    args = tuple(_move(a, device) for a in args)
    kwargs = {key: _move(value, device) for key, value in kwargs.items()}
    autocast = "autocast-cuda" if device == "cuda" else "autocast-cpu"

    def call(program: Callable[..., object]) -> Run:
        return lambda: program(*args, **kwargs)

    def under_autocast() -> object:
        with torch.autocast(device, torch.bfloat16):
            return baseline(*args, **kwargs)

    cast = copy.deepcopy(model).bfloat16()
    low_args = tuple(map(_cast, args))
    low_kwargs = {key: _cast(value) for key, value in kwargs.items()}
    ours = amprewrite.convert(model, args=args, kwargs=kwargs)
    plan = amprewrite.convert(model, args=args, kwargs=kwargs, lowering=False)
    theirs = amprewrite.convert(model, autocast, args=args, kwargs=kwargs)
    baseline: Any = model
    if compiled:
        ours, theirs = torch.compile(ours), torch.compile(theirs)
        plan, cast = torch.compile(plan), torch.compile(cast)
        baseline = torch.compile(copy.deepcopy(model))
    return {
        "float32": call(torch.compile(model) if compiled else model),
        "autocast": under_autocast,
        "bfloat16()": lambda: cast(*low_args, **low_kwargs),
        "bf16": call(ours),
        "bf16, lowering=False": call(plan),
        autocast: call(theirs),
    }


def measure(runs: dict[str, Run], rounds: int, device: str) -> dict[str, float]:
    """Return the median seconds of each variant over interleaved rounds."""
    timed = _clock(device)
    seconds: dict[str, list[float]] = {key: [] for key in runs}
    with torch.no_grad():
        for run in runs.values():
            for _ in range(3):
                run()
        for _ in range(rounds):
            for key, run in runs.items():
                seconds[key].append(timed(run))
    return {key: statistics.median(found) for key, found in seconds.items()}


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements with the machine and versions."""
    rows: dict[str, Any] = {}
    for name in options.models:
        for label, shape in SHAPES.items():
            torch.compiler.reset()
            runs = variants(name, shape, options.device, compiled=options.compiled)
            medians = measure(runs, options.rounds, options.device)
            reference = medians["autocast"]
            rows[f"{name}, {label}"] = {
                "ratio_to_autocast": {k: reference / v for k, v in medians.items()},
                "seconds": medians,
            }
            print(
                f"{name}, {label}",
                {k: round(reference / v, 2) for k, v in medians.items()},
                flush=True,
            )
    device = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor()
    )
    return {
        "what": "autocast's median time over the variant's; above 1 is faster",
        "device": device or options.device,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16_matmul": torch.ops.mkldnn._is_mkldnn_bf16_supported(),  # noqa: SLF001  # torch has no public way to ask
        "compiled": options.compiled,
        "torch": torch.__version__,
        "transformers": zoo.transformers.__version__,
        "rounds": options.rounds,
        "rows": rows,
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    found = report(options)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
