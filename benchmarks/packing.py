"""Packed weights: time of linear layers, time and bytes of a small BERT.

Layers and models run beside plain ones, in turn in one process, with one thread; times
are medians. Packed are the dtypes for which this CPU has kernels, and float32, which
programs leave plain, for comparison: ``packs`` says which are packed by default. Bytes
are those of all parameters, packed ones with the fillings of their blocks.

python -m benchmarks.packing --out benchmarks/results/packing.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import BertConfig, BertModel

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, pack_linears
from amprewrite.frameworks.torch_fx.lowering.packing.packed_weight import (
    KEY,
    PackedWeight,
)

Runs = dict[str, Callable[[], object]]

SHAPES = ((768, 768), (768, 3072), (3072, 768))
"""Inputs and outputs of the layers of BERT-base."""

ROWS = (1, 16, 1024)
GELU = kernels.Epilogue("gelu", (), "none")
SUM = kernels.Epilogue("add", sums=True)


def medians(runs: Runs, seconds: float) -> dict[str, float]:
    """Return the median microseconds of each function, called in turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 7:  # noqa: PLR2004  # for a median
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def layer(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> Runs:
    """Return a layer, plain and packed, with and without what may follow it."""
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs)
    weight, bias = weight.to(dtype), torch.randn(outputs).to(dtype)
    turned, other = weight.t().contiguous(), torch.randn(rows, outputs).to(dtype)
    matrix = kernels.packed(weight, rows)
    run, run_gelu, run_sum = map(kernels.kernel, (kernels.NONE, GELU, SUM))

    def plain() -> torch.Tensor:
        return functional.linear(x, weight, bias)

    return {
        "linear": plain,
        "addmm": lambda: torch.addmm(bias, x, turned),
        "packed": lambda: run(x, matrix, bias),
        "linear, gelu": lambda: functional.gelu(plain()),
        "packed, gelu": lambda: run_gelu(x, matrix, bias),
        "linear, sum": lambda: plain() + other,
        "packed, sum": lambda: run_sum(x, matrix, bias, other),
        "pack": lambda: kernels.packed(weight, rows),
        "unpack": lambda: kernels.plain(matrix),
    }


def layers(dtype: torch.dtype, seconds: float) -> dict[str, dict[str, float]]:
    """Return times of layers by their rows and shape, plain and packed."""
    found: dict[str, dict[str, float]] = {}
    for rows, (inputs, outputs) in product(ROWS, SHAPES):
        key = f"{rows} x {inputs} -> {outputs}"
        found[key] = medians(layer(dtype, rows, inputs, outputs), seconds)
        print(key, found[key], flush=True)
    return found


def held(model: torch.nn.Module) -> int:
    """Return the bytes of the parameters, as they are held."""
    total = 0
    for parameter in {*model.parameters()}:
        is_packed = type(parameter) is PackedWeight
        known = vars(parameter)[KEY].matrix if is_packed else None
        total += parameter.numel() * parameter.element_size() if known is None else 0
        total += 0 if known is None else kernels.size(known)
    return total


def model(policy: str, length: int, seconds: float) -> dict[str, Any]:
    """Return time and bytes of a BERT of four layers of width 256."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=8192,
    )
    made, args = BertModel(config).eval(), (torch.randint(0, 8192, (1, length)),)
    plain = amprewrite.convert(made, policy, args=args, lowering=False)
    packed = amprewrite.convert(made, policy, args=args)
    before = held(packed)
    start = time.perf_counter()
    packed(*args)
    first = time.perf_counter() - start
    error = packed(*args)[0].double() - plain(*args)[0].double()
    size = plain(*args)[0].double().norm()
    names = [one.name for one in packed.plan.lowerings]
    runs: Runs = {"plain": lambda: plain(*args), "packed": lambda: packed(*args)}
    times = medians(runs, seconds)
    count = sum(type(p) is PackedWeight for p in packed.parameters())
    return {
        "microseconds": times,
        "bytes before": before,
        "bytes packed": held(packed),
        "weights packed": count,
        "fused": names.count("fused"),
        "difference": float(error.norm() / size),
        "seconds of the first call": round(first, 4),
    }


def overhead() -> dict[str, float]:
    """Return the microseconds of calls of a layer of 16 by 16 and one row."""
    x, weight = torch.randn(1, 16), torch.randn(16, 16)
    matrix, run = kernels.packed(weight, 1), kernels.kernel(kernels.NONE)
    runs: Runs = {
        "linear": lambda: functional.linear(x, weight),
        "packed": lambda: run(x, matrix, None),
    }
    return medians(runs, 1.0)


def main() -> None:
    """Print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each comparison")
    given = parser.parse_args()
    torch.set_num_threads(1)
    low = (torch.bfloat16, torch.float16)
    dtypes = [torch.float32, *(dtype for dtype in low if kernels.packs(dtype))]
    found: dict[str, Any] = {
        "what": "median microseconds, one thread, in turn in one process",
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "packs": {str(d): kernels.packs(d) for d in (*dtypes, *low)},
        "layers": {},
        "models": {},
    }
    policies = {torch.float32: "off", torch.bfloat16: "bf16", torch.float16: "fp16"}
    with torch.no_grad():
        found["overhead"] = overhead()
        for dtype in dtypes:
            kernels.packs = dtype.__eq__  # float32 is plain otherwise
            name = str(dtype).removeprefix("torch.")
            found["layers"][name] = layers(dtype, given.seconds)
            for length in (16, 128):
                key = f"{name}, 1 x {length}"
                found["models"][key] = model(policies[dtype], length, 3 * given.seconds)
                print(key, found["models"][key], flush=True)
    found["least elements"] = pack_linears.LEAST_ELEMENTS
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
