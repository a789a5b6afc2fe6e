"""Time and peak memory of ``verify`` on BERT, against one forward pass in float64.

Times are processor seconds of one thread. That of the capture, which depends on the
number of ops alone, is apart, as ``constant``. Passes are counted by the floating-point
operations of their products in each dtype: a processor without instructions for
bfloat16 runs those passes many times slower than others do. ``if low took as long as
float32`` is the time less that of the emulation.

Memory is the growth of the resident set of a fresh process to its peak (Linux), which
counts torch, NumPy and the scratch memory of kernels; that of a pass in float64
includes the copy of the weights in float64.

With ``--gradients``, verify compares gradients too, and a pass is one forward and one
backward.

python -m benchmarks.verify_cost --out benchmarks/results/verify_cost.json
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import BertConfig, BertModel

import amprewrite
from amprewrite.frameworks.torch_fx.comparison import compare
from benchmarks.product_counter import products

LOW = "bfloat16"


class Case(NamedTuple):
    """A model of BERT-base's width, and a batch of tokens."""

    layers: int
    batch: int
    length: int

    def build(self) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
        """Return the model with random weights, and its arguments."""
        torch.manual_seed(0)
        model = BertModel(BertConfig(num_hidden_layers=self.layers)).eval()
        ids = torch.randint(0, model.config.vocab_size, (self.batch, self.length))
        return model, (ids,)


CASES = {"small": Case(2, 4, 64), "bert-base": Case(12, 8, 128)}


class Clock:
    """Clock of a call, and of the time of the capture in it."""

    def __init__(self) -> None:
        self.constant = 0.0

    def __call__(self, run: Callable[[], object]) -> float:
        """Return the processor seconds of a call, without those of the capture."""
        before, self.constant = compare.capture, 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return before(*args, **kwargs)
            finally:
                self.constant += time.thread_time() - start

        compare.capture = timed
        start = time.thread_time()
        try:
            run()
        finally:
            compare.capture = before
        return time.thread_time() - start - self.constant


def runs_of(case: Case, *, gradients: bool) -> dict[str, Callable[[], object]]:
    """Return the functions to be timed, by name.

    With gradients, a pass is one forward and backward, in the dtype of its name.
    """
    model, args = case.build()
    converted = amprewrite.convert(model, "bf16", args=args)

    def forward(function: torch.nn.Module) -> None:
        with torch.set_grad_enabled(gradients):
            made = function(*args).last_hidden_state
            if gradients:
                made.double().square().mean().backward()
        function.zero_grad()

    return {
        "float64": partial(forward, copy.deepcopy(model).double()),
        "float32": partial(forward, model),
        "converted": partial(forward, converted),
        "verify": lambda: amprewrite.verify(
            model, converted, args, gradients=gradients
        ),
    }


def seconds_of(case: Case, rounds: int, *, gradients: bool) -> dict[str, Any]:
    """Return the least processor seconds of each run, and of the capture in verify."""
    runs = runs_of(case, gradients=gradients)
    clock, best, constant = Clock(), dict[str, float](), float("inf")
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(clock(run), best.get(name, float("inf")))
        constant = min(clock.constant, constant)
    return {**best, "constant": constant}


def _status(key: str) -> int:
    """Return bytes in a line of the status of this process."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def wide_pass(
    model: torch.nn.Module, args: tuple[torch.Tensor], *, gradients: bool
) -> None:
    """Run a copy of a model in float64."""
    wide = copy.deepcopy(model).double()
    with torch.set_grad_enabled(gradients):
        made = wide(*args).last_hidden_state
        if gradients:
            made.square().mean().backward()


def probe(case: Case, name: str, *, gradients: bool) -> dict[str, Any]:
    """Return the growth of this process in one run, in bytes, and its products."""
    runs_of(Case(1, 1, 8), gradients=gradients)["verify"]()  # loads modules
    if name == "verify":
        run = runs_of(case, gradients=gradients)["verify"]
    else:
        run = partial(wide_pass, *case.build(), gradients=gradients)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # resets the peak
    flops = products(run)
    return {"peak": _status("VmHWM") - before, "flops": flops}


def probed(case: str, name: str, *, gradients: bool) -> dict[str, Any]:
    """Return :func:`probe` of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.verify_cost", "--probe", name]
    command += ["--cases", case, *(["--gradients"] if gradients else [])]
    # Freed blocks go back to the system at once, so that the peak is of live ones.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.decode().splitlines()[-1])


def measure(name: str, rounds: int, *, gradients: bool) -> dict[str, Any]:
    """Return the row of one case."""
    one, every = (
        probed(name, run, gradients=gradients) for run in ("float64", "verify")
    )
    unit = one["flops"]["float64"]
    passes = {k: n / unit for k, n in every["flops"].items()}
    seconds = seconds_of(CASES[name], rounds, gradients=gradients)
    emulated = passes.get(LOW, 0.0) * (seconds["converted"] - seconds["float32"])
    wide = seconds["float64"]
    return {
        "seconds": seconds,
        "passes in verify": passes,
        "time in passes in float64": {
            "a pass in float32": seconds["float32"] / wide,
            "a pass converted": seconds["converted"] / wide,
            "verify": seconds["verify"] / wide,
            "verify, if low took as long as float32": (seconds["verify"] - emulated)
            / wide,
        },
        "peak in MB": {"a pass": one["peak"] / 1e6, "verify": every["peak"] / 1e6},
        "peak in passes": every["peak"] / one["peak"],
    }


def main() -> None:
    """Measure and write JSON; rows of other cases that a file has stay in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--probe", choices=("float64", "verify"), help="one run alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gradients, out = options.gradients, options.out
    if options.probe:
        (case,) = (CASES[name] for name in options.cases)
        print(json.dumps(probe(case, options.probe, gradients=gradients)))
        return
    rows: dict[str, Any] = {}
    if out and out.exists():
        rows = json.loads(out.read_text("utf-8"))["rows"]
    for name in options.cases:
        key = f"{name}, gradients" if gradients else name
        rows[key] = measure(name, options.rounds, gradients=gradients)
        print(key, json.dumps(rows[key], indent=1), flush=True)
        found = {
            "what": "processor seconds of one thread; growth of the resident set",
            "torch": torch.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cases": {k: case._asdict() for k, case in CASES.items()},
            "rows": rows,
        }
        if out:
            out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
