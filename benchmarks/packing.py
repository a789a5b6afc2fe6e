"""Packed weights: time of layers and convolutions, time and bytes of models.

Layers and models run beside plain ones, in turn in one process, with one thread; times
are medians. Packed are the dtypes for which this CPU has kernels, and float32, in which
programs leave linear layers plain, for comparison: ``packs`` and ``convolves`` say what
is packed by default. Bytes are those of all parameters, packed ones with the fillings
of their blocks.

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
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel

import amprewrite
from amprewrite.frameworks.torch_fx.lowering.packing import kernels, pack_layers
from amprewrite.frameworks.torch_fx.lowering.packing.packed_layer import (
    KEY,
    PackedWeight,
)

Runs = dict[str, Callable[[], object]]

SHAPES = ((768, 768), (768, 3072), (3072, 768))
"""Inputs and outputs of the layers of BERT-base."""

ROWS = (1, 16, 1024)
GELU = kernels.Epilogue("gelu", (), "none")

CONVOLUTIONS = {
    "stem 7x7": (3, 64, 7, 2, 1, 224),
    "1x1 64 -> 256": (64, 256, 1, 1, 1, 56),
    "3x3 64": (64, 64, 3, 1, 1, 56),
    "1x1 256 -> 64": (256, 64, 1, 1, 1, 56),
    "3x3 128": (128, 128, 3, 1, 1, 28),
    "3x3 128 of stride 2": (128, 128, 3, 2, 1, 56),
    "1x1 512 -> 2048": (512, 2048, 1, 1, 1, 7),
    "3x3 512": (512, 512, 3, 1, 1, 7),
    "3x3 144 alone": (144, 144, 3, 1, 144, 56),
    "5x5 240 alone": (240, 240, 5, 1, 240, 28),
    "7x7 96 alone": (96, 96, 7, 1, 96, 56),
    "patches 4x4": (3, 96, 4, 4, 1, 224),
    "patches 16x16": (3, 768, 16, 16, 1, 224),
}
"""Channels in and out, window, stride, groups, extent of the image.

Those of ResNet-50, of windows with each channel alone (MobileNet, EfficientNet and
ConvNeXt), and the embeddings of patches of ConvNeXt and ViT.
"""

LAST = torch.channels_last


def medians(runs: Runs, seconds: float) -> dict[str, float]:
    """Return the median microseconds of each function, called in turn.

    They are those of the processor, with one thread: others may run on the machine.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 7:  # noqa: PLR2004  # for a median
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append((time.process_time() - start) * 1e6)
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def layer(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> Runs:
    """Return a layer, plain and packed, with and without what may follow it."""
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs)
    weight, bias = weight.to(dtype), torch.randn(outputs).to(dtype)
    turned, other = weight.t().contiguous(), torch.randn(rows, outputs).to(dtype)
    matrix = kernels.packed_matrix(weight, rows)
    run, run_gelu, run_sum = map(
        kernels.matrix_kernel, (kernels.NONE, GELU, kernels.SUM)
    )

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
        "pack": lambda: kernels.packed_matrix(weight, rows),
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


def merged(dtype: torch.dtype, rows: int, width: int) -> Runs:
    """Return three layers of one operand, and one layer with the rows of all three."""
    x = torch.randn(rows, width).to(dtype)
    weights = [torch.randn(width, width).to(dtype) / width**0.5 for _ in range(3)]
    biases = [torch.randn(width).to(dtype) for _ in range(3)]
    weight, bias = torch.cat(weights), torch.cat(biases)
    packed = [kernels.packed_matrix(one, rows) for one in weights]
    all_packed, run = (
        kernels.packed_matrix(weight, rows),
        kernels.matrix_kernel(kernels.NONE),
    )
    linear = functional.linear
    plain_pairs = [*zip(weights, biases, strict=True)]
    pairs = [*zip(packed, biases, strict=True)]
    return {
        "three": lambda: [linear(x, *pair) for pair in plain_pairs],
        "merged": lambda: linear(x, weight, bias).split(width, -1),
        "three packed": lambda: [run(x, *pair) for pair in pairs],
        "merged packed": lambda: run(x, all_packed, bias).split(width, -1),
    }


def merges(dtype: torch.dtype, seconds: float) -> dict[str, dict[str, float]]:
    """Return times of three layers of one operand by rows and width."""
    found: dict[str, dict[str, float]] = {}
    for rows, width in product((1, 16, 128, 1024), (256, 768, 2048)):
        key = f"{rows} x {width}"
        found[key] = medians(merged(dtype, rows, width), seconds)
        print(key, found[key], flush=True)
    return found


def convolution(dtype: torch.dtype, batch: int, name: str) -> Runs:
    """Return a convolution: plain and packed, in both layouts, with what may follow.

    Those ``last`` read and give the channels last; ``packed`` alone copies both.
    """
    inputs, outputs, size, step, groups, extent = CONVOLUTIONS[name]
    x = torch.randn(batch, inputs, extent, extent).to(dtype)
    weight = torch.randn(outputs, inputs // groups, size, size).to(dtype)
    weight, bias = weight / (weight[0].numel() ** 0.5), torch.randn(outputs).to(dtype)
    zeros = 0 if size == step else size // 2
    window = kernels.Window((step,) * 2, (zeros,) * 2, (1, 1), groups)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight, bias, step, zeros, 1, groups)

    other, x_last = torch.randn_like(plain(x)), x.contiguous(memory_format=LAST)
    other_last = other.contiguous(memory_format=LAST)
    blocks = kernels.packed_window(weight, window, x.shape)
    run, run_sum = (
        kernels.window_kernel(window, one) for one in (kernels.NONE, kernels.SUM)
    )
    return {
        "conv": lambda: plain(x),
        "conv last": lambda: plain(x_last),
        "packed": lambda: run(x, blocks, bias).contiguous(),
        "packed last": lambda: run(x_last, blocks, bias),
        "conv, relu": lambda: plain(x).relu_(),
        "packed last, relu": lambda: run(x_last, blocks, bias).relu_(),
        "conv, sum, relu": lambda: plain(x).add_(other).relu_(),
        "conv last, sum, relu": lambda: plain(x_last).add_(other_last).relu_(),
        "packed last, sum, relu": lambda: run_sum(
            x_last, blocks, bias, other_last
        ).relu_(),
    }


def convolutions(dtype: torch.dtype, seconds: float) -> dict[str, dict[str, float]]:
    """Return times of convolutions by the batch and the name, plain and packed."""
    found: dict[str, dict[str, float]] = {}
    for batch, name in product((1, 8), CONVOLUTIONS):
        key = f"{batch} x {name}"
        found[key] = medians(convolution(dtype, batch, name), seconds)
        print(key, found[key], flush=True)
    return found


def vgg() -> nn.Module:
    """Return the convolutions of VGG-16, with their activations and poolings."""
    layers: list[nn.Module] = []
    width = 3
    for count, outputs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            width = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def images(name: str, policy: str, batch: int, seconds: float) -> dict[str, Any]:
    """Return time and bytes of a network of convolutions, on images of 224 by 224."""
    torch.manual_seed(0)
    made = vgg() if name == "VGG-16" else ResNetModel(ResNetConfig())
    return compared(made.eval(), policy, (torch.randn(batch, 3, 224, 224),), seconds)


def held(model: torch.nn.Module) -> int:
    """Return the bytes of the parameters, as they are held."""
    total = 0
    for parameter in {*model.parameters()}:
        is_packed = type(parameter) is PackedWeight
        known = vars(parameter)[KEY].values if is_packed else None
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
    args = (torch.randint(0, 8192, (1, length)),)
    return compared(BertModel(config).eval(), policy, args, seconds)


def compared(
    made: nn.Module, policy: str, args: tuple[Any, ...], seconds: float
) -> dict[str, Any]:
    """Return time and bytes of a model converted with and without packed weights."""
    plain = amprewrite.convert(made, policy, args=args, lowering=False)
    packed = amprewrite.convert(made, policy, args=args)
    before = held(packed)
    start = time.perf_counter()
    packed(*args)
    first = time.perf_counter() - start
    wanted = plain(*args)[0].double()
    error, size = packed(*args)[0].double() - wanted, wanted.norm()
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
    matrix, run = kernels.packed_matrix(weight, 1), kernels.matrix_kernel(kernels.NONE)
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
        "what": "median microseconds of the processor, one thread, in turn in one "
        "process",
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "packs": {str(d): kernels.packs(d) for d in (*dtypes, *low)},
        "convolves": {str(d): kernels.convolves(d) for d in (*dtypes, *low)},
        "layers": {},
        "convolutions": {},
        "merged": {},
        "models": {},
    }
    policies = {torch.float32: "off", torch.bfloat16: "bf16", torch.float16: "fp16"}
    with torch.no_grad():
        found["overhead"] = overhead()
        for dtype in dtypes:
            name = str(dtype).removeprefix("torch.")
            found["convolutions"][name] = convolutions(dtype, given.seconds)
            for network, batch in product(("ResNet-50", "VGG-16"), (1, 8)):
                key = f"{name}, {network}, {batch} x 224 x 224"
                of = images(network, policies[dtype], batch, 6 * given.seconds)
                found["models"][key] = of
                print(key, of, flush=True)
            found["merged"][name] = merges(dtype, given.seconds)
            kernels.packs = dtype.__eq__  # float32 is plain otherwise
            found["layers"][name] = layers(dtype, given.seconds)
            for length in (16, 128):
                key = f"{name}, 1 x {length}"
                found["models"][key] = model(policies[dtype], length, 3 * given.seconds)
                print(key, found["models"][key], flush=True)
    found["least elements"] = pack_layers.LEAST_ELEMENTS
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
