"""Speed of converted models beside float32, torch.autocast and model.bfloat16().

Each form of a model runs eagerly, compiled, and compiled with its weights as constants
(frozen). All forms of one model run interleaved in a process, and several processes run
one after the other, because autocast is of two speeds, which the allocator of a process
decides. A figure is the median over the processes of their medians, with the least and
the largest. On a CPU the clock is the processor time of one thread, which other work of
the machine disturbs little; on a GPU it is the device's own event clock. What a file
has of other models, shapes, modes and forms stays in it.

    python -m benchmarks.speed --out FILE.json
    python -m benchmarks.speed --small  # two small models, in two minutes

``benchmarks.speed_plots`` makes a table and a picture of the file.
"""

import argparse
import copy
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import amprewrite
from amprewrite.frameworks.torch_fx.aten.ops import named_tensors
from amprewrite.frameworks.torch_fx.compat import compiling
from benchmarks import zoo
from benchmarks.gpu import models as usual
from benchmarks.speed_counts import counts, peak_bytes
from benchmarks.speed_peers import PEERS, available

SHAPES = {"1x16": (1, 16), "8x128": (8, 128), "2x256": (2, 256)}
"""Batch and length of the sequences; images take the batch."""

MODELS = (
    *("minilm", "bert", "gpt2", "llama", "t5", "vit", "resnet", "resnet-50"),
    *("unet", "lstm"),
)
"""Models timed by default; more with --models.

They are those of ``benchmarks.zoo``, and those of usual size of ``benchmarks.gpu``; the
latter choose the length of their sequences.
"""

MODES = ("eager", "compiled", "frozen")
"""Ways to run a model."""

FORMS = ("float32", "autocast", "bfloat16()", "promote", "tolerance", "fastest")
"""Forms of a model; the last three are converted."""

OPTIONS: dict[str, dict[str, Any]] = {
    "promote": {},
    "tolerance": {"tolerance": "autocast"},
    "fastest": {"placement": "fastest"},
    "plan": {"lowering": False},
}
"""Options of the converted forms; ``plan`` runs the graph of the plan of promote."""

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


def _cast(value: object) -> object:
    """Return an argument of ``model.bfloat16()``."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.bfloat16()
    return value


def form_of(form: str, mode: str, case: tuple[Any, Any, Any], device: str) -> Run:
    """Return one form of a model in one mode, as a call without arguments.

    Args:
        form: The form.
        mode: How it runs.
        case: The model, its arguments and keyword arguments; they stay as they are.
        device: Type of the device.
    """
    model, args, kwargs = case
    if form in OPTIONS:
        frozen = mode == "frozen"
        options = {"args": args, "kwargs": kwargs, "compile": frozen, **OPTIONS[form]}
        made: Any = amprewrite.convert(model, **options)
        run = torch.compile(made) if mode == "compiled" else made
        return lambda: run(*args, **kwargs)
    made = copy.deepcopy(model)
    if form == "bfloat16()":
        made = made.bfloat16()
        args = tuple(map(_cast, args))
        kwargs = {key: _cast(value) for key, value in kwargs.items()}
    run = made
    if mode != "eager":
        run = compiling.compiled_function(made.__call__, frozen=mode == "frozen")
    if form != "autocast":
        return lambda: run(*args, **kwargs)

    def under_autocast() -> object:
        with torch.autocast(device, torch.bfloat16):
            return run(*args, **kwargs)

    return under_autocast


def measure(runs: dict[str, Run], rounds: int, device: str) -> dict[str, float]:
    """Return the median seconds of each form over interleaved rounds."""
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


def errors(runs: dict[str, Run], case: tuple[Any, Any, Any]) -> dict[str, float]:
    """Return the relative error of each form against float64."""
    model, args, kwargs = case
    wide = copy.deepcopy(model).double()

    def widened(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        return value

    with torch.no_grad():
        named = {key: widened(value) for key, value in kwargs.items()}
        expected = _first(wide(*map(widened, args), **named))
        found = {name: _first(run()) for name, run in runs.items()}
    return {
        name: float((value - expected).norm() / expected.norm())
        for name, value in found.items()
    }


def _first(value: object) -> torch.Tensor:
    """Return the first float tensor of an output, in float64."""
    leaves = dict(named_tensors(value)).values()
    return next(leaf for leaf in leaves if leaf.is_floating_point()).double()


def rows_of_process(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the name, and the medians and errors, of each model in this process."""
    for name, label in itertools.product(options.models, options.shapes):
        torch.compiler.reset()
        case = _case(name, SHAPES[label], options)
        runs = {
            f"{form}, {mode}": form_of(form, mode, case, options.device)
            for form in options.forms
            for mode in options.modes
        }
        others, left_out = available(options.peers, case, options.device)
        every = runs | others
        eager = [key for key in runs if key.endswith(", eager")]
        yield (
            f"{name}, {label}",
            {
                "seconds": measure(every, options.rounds, options.device),
                "error": errors(every, case),
                "counts": {key: counts(runs[key]) for key in eager},
                "peak_bytes": {key: peak_bytes(run) for key, run in runs.items()}
                if options.device == "cpu"
                else {},
                "left_out": left_out,
            },
        )


def _case(name: str, shape: tuple[int, int], options: argparse.Namespace) -> zoo.Case:
    """Return a model with its arguments, on the device."""
    if name not in zoo.ZOO:
        return usual.case(name, options.device, batch=shape[0], tiny=options.small)
    size = zoo.TINY if options.small else zoo.BASE
    model, args, kwargs = zoo.build(name, size, *shape)
    return model.to(options.device), *usual.on(options.device, (args, kwargs))


def joined(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of several processes as medians with their spread."""
    rows: dict[str, Any] = {}
    for name, first in processes[0].items():
        times = {
            form: [found[name]["seconds"][form] for found in processes]
            for form in first["seconds"]
        }
        medians = {form: statistics.median(found) for form, found in times.items()}
        spread = {form: [min(found), max(found)] for form, found in times.items()}
        rows[name] = {**first, "seconds": medians, "spread": spread}
    return rows


def added(rows: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a file with others; a figure of both is that of the others."""
    found = {name: dict(row) for name, row in rows.items()}
    for name, row in others.items():
        known = found.setdefault(name, {})
        known |= {key: {**known.get(key, {}), **part} for key, part in row.items()}
    return found


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine and the versions."""
    cuda = options.device == "cuda"
    return {
        "what": "median seconds of a call over processes, with least and largest; "
        "relative error of the first output against float64; counts and peak bytes of "
        "one call",
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16_matmul": torch.ops.mkldnn._is_mkldnn_bf16_supported(),  # noqa: SLF001  # torch has no public way to ask
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": zoo.transformers.__version__,
        "size": "TINY" if options.small else "BASE",
        "rounds": options.rounds,
        "processes": options.processes,
    }


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements, each process one after the other."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.processes):
            file = Path(folder) / f"{number}.json"
            given = [*sys.argv[1:], "--one", str(file)]
            command = [sys.executable, "-m", "benchmarks.speed", *given]
            subprocess.run(command, check=True)
            found.append(json.loads(file.read_text("utf-8")))
            print(f"process {number + 1} of {options.processes}", flush=True)
    return {**machine(options), "rows": joined(found)}


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    forms = (*FORMS, "plan")
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=forms)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--small", action="store_true", help="two tiny models")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.models = options.models or (("bert", "resnet") if options.small else MODELS)
    if options.small:
        options.shapes = ["1x16"]
    return options


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {form: f"{s * 1e3:.3g} ms" for form, s in row["seconds"].items()}


def main() -> None:
    """Measure and write JSON."""
    options = parsed()
    if options.device == "cpu":
        torch.set_num_threads(1)
    if options.one:
        rows: dict[str, Any] = {}
        for name, row in rows_of_process(options):
            rows[name] = row
            print(name, _shown(row), flush=True)
        options.one.write_text(json.dumps(rows), "utf-8")
        return
    found = report(options)
    for name, row in found["rows"].items():
        print(name, _shown(row))
    if options.out:
        if options.out.exists():
            known = json.loads(options.out.read_text("utf-8"))["rows"]
            found["rows"] = added(known, found["rows"])
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
