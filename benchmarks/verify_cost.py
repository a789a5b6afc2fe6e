"""Time and peak memory of ``verify`` on BERT, against one forward pass in float64.

Each run is alone in a fresh process. Times are processor seconds of one thread. That of
the capture, which depends on the number of ops alone, is apart, as ``constant``. Passes
are counted by the floating-point operations of their products in each dtype: a
processor without instructions for bfloat16 runs those passes many times slower than
others do. ``if low took as long as float32`` is the time less that of the emulation.

Memory is the growth of the resident set to its peak (Linux), which counts torch, NumPy
and the scratch memory of kernels; that of a pass in float64 includes the copy of the
weights in float64.

With ``--gradients``, verify compares gradients too, and a pass is one forward and one
backward.

python -m benchmarks.verify_cost --out benchmarks/results/verify_cost.json
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import BertConfig, BertModel

import amprewrite
from amprewrite.frameworks.torch_fx.comparison import compare
from benchmarks.product_counter import products

LOW = "bfloat16"


class Bert(NamedTuple):
    """A model of BERT-base's width, and a batch of tokens."""

    layers: int
    batch: int
    length: int

    def build(self) -> tuple[nn.Module, tuple[torch.Tensor]]:
        """Return the model with random weights, and its arguments."""
        torch.manual_seed(0)
        model = BertModel(BertConfig(num_hidden_layers=self.layers)).eval()
        ids = torch.randint(0, model.config.vocab_size, (self.batch, self.length))
        return model, (ids,)


class Perceptron(NamedTuple):
    """A deep perceptron, and many rows: its activations are larger than its weights."""

    layers: int
    width: int
    rows: int

    def build(self) -> tuple[nn.Module, tuple[torch.Tensor]]:
        """Return the model with random weights, and its arguments."""
        torch.manual_seed(0)
        width = self.width
        parts = (
            part
            for _ in range(self.layers)
            for part in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        )
        return nn.Sequential(*parts).eval(), (torch.randn(self.rows, width),)


Case = Bert | Perceptron

CASES: dict[str, Case] = {
    "2 layers, 4 x 64": Bert(2, 4, 64),
    "2 layers, 8 x 128": Bert(2, 8, 128),
    "bert-base, 8 x 128": Bert(12, 8, 128),
    "perceptron, 24 layers, 8192 rows": Perceptron(24, 256, 8192),
}


class Clock:
    """Clock of a call, and of parts of it that are apart."""

    def __init__(self) -> None:
        self.constant = 0.0

    def apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of which the time does not count."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.constant += time.thread_time() - start

        return timed

    def __call__(self, run: Callable[[], object]) -> float:
        """Return the processor seconds of a call."""
        self.constant, start = 0.0, time.thread_time()
        run()
        return time.thread_time() - start - self.constant


def run_of(
    case: Case, name: str, clock: Clock, *, gradients: bool
) -> Callable[[], object]:
    """Return the run of a case that is to be measured.

    The copy in float64 and the capture of verify do not count as time.
    """
    model, args = case.build()

    def forward(function: Callable[..., Any], args: Any = args) -> None:
        with torch.set_grad_enabled(gradients):
            made = function(*args)
            made = getattr(made, "last_hidden_state", made)
            if gradients:
                made.double().square().mean().backward()

    if name == "float64":
        widened = clock.apart(lambda: copy.deepcopy(model).double())
        (given,) = args
        wide = (given.double(),) if given.is_floating_point() else args
        return lambda: forward(widened(), wide)
    if name == "float32":
        return lambda: forward(model)
    converted = amprewrite.convert(model, "bf16", args=args)
    if name == "converted":
        return lambda: forward(converted)
    compare.capture = clock.apart(compare.capture)
    return partial(amprewrite.verify, model, converted, args, gradients=gradients)


RUNS = ("float64", "float32", "converted", "verify")


def _status(key: str) -> int:
    """Return bytes in a line of the status of this process."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def probe(case: Case, name: str, *, gradients: bool) -> dict[str, Any]:
    """Return the seconds, the products and the growth of this process in one run."""
    run_of(Bert(1, 1, 8), name, Clock(), gradients=gradients)()  # loads modules
    clock = Clock()
    run = run_of(case, name, clock, gradients=gradients)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # resets the peak
    seconds: list[float] = []
    flops = products(lambda: seconds.append(clock(run)))
    return {
        "seconds": seconds[0],
        "constant": clock.constant,
        "peak": (_status("VmHWM") - before) / 1e6,
        "flops": flops,
    }


def probed(case: str, name: str, rounds: int, *, gradients: bool) -> dict[str, Any]:
    """Return :func:`probe` in fresh processes: the fastest one."""
    command = [sys.executable, "-m", "benchmarks.verify_cost", "--probe", name]
    command += ["--cases", case, *(["--gradients"] if gradients else [])]
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found.append(json.loads(done.stdout.decode().splitlines()[-1]))
    return min(found, key=lambda row: row["seconds"])


def measure(case: str, rounds: int, *, gradients: bool) -> dict[str, Any]:
    """Return the row of one case."""
    found = {run: probed(case, run, rounds, gradients=gradients) for run in RUNS}
    one, every = found["float64"], found["verify"]
    seconds = {run: row["seconds"] for run, row in found.items()}
    passes = {k: n / one["flops"]["float64"] for k, n in every["flops"].items()}
    emulated = passes[LOW] * max(0.0, seconds["converted"] - seconds["float32"])
    relative = {run: taken / one["seconds"] for run, taken in seconds.items()}
    key = "verify, if low took as long as float32"
    relative[key] = (seconds["verify"] - emulated) / one["seconds"]
    return {
        "seconds": {**seconds, "constant of verify": every["constant"]},
        "passes in verify": passes,
        "time in passes in float64": relative,
        "peak in MB": {run: row["peak"] for run, row in found.items()},
        "peak of verify in passes in float64": every["peak"] / one["peak"],
    }


def main() -> None:
    """Measure and write JSON; rows of other cases that the file has stay in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--probe", choices=RUNS, help="one run alone, in this process")
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
            "rows": rows,
        }
        if out:
            out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
