"""Training of converted torch models, beside what users would use instead.

Four tables, each measured with all its rivals in one process: bytes that the forward
pass keeps for the backward pass; errors of gradients against float64; times of a whole
step, interleaved; losses of runs with small gradients and of runs with low weights.

    python -m benchmarks.training_torch --out benchmarks/results/training_torch.json

Hand-written casts are those of a careful user: a cast input and a cast weight for every
linear layer, norms in float32, and what follows a linear layer in what it gives.
Tables that are not measured stay in the file as they are.
"""

import argparse
import copy
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own name
from transformers.pytorch_utils import Conv1D

import amprewrite
from amprewrite.training.torch import GradScaler, LowWeights
from benchmarks import zoo
from benchmarks.speed_counts import kept_bytes

LOW = torch.bfloat16
SIZE = zoo.Size(width=256, layers=2, vocabulary=2000, side=64)
MODELS = {"gpt2": (16, 128), "vit": (16, 0), "bert": (16, 128), "resnet": (16, 0)}
"""Batch and tokens. Dropout is off: torch's CPU kernel of attention with dropout keeps
float32 whatever its inputs are, which is not what is measured here."""

TIMED = (4, 64)
"""Batch and tokens of what is timed."""

Run = Callable[[], Any]


COMPILED = replace(SIZE, width=128, layers=1)
"""Size of what is compiled and timed; each rival is compiled for minutes."""


def case(name: str, shape: tuple[int, int], size: zoo.Size = SIZE) -> zoo.Case:
    """Return a model in train mode without dropout, and its arguments."""
    torch.manual_seed(0)
    model, args, kwargs = zoo.build(name, size, *shape)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model.train(), args, kwargs


def loss_of(output: object) -> torch.Tensor:
    """Return the mean square distance of the first output to fixed targets."""
    parts: Any = output
    first = parts[0] if isinstance(parts, tuple) else next(iter(parts.values()))
    draws = torch.Generator().manual_seed(0)
    target = torch.randn(first.shape, generator=draws, dtype=torch.float64)
    wide = first if first.dtype == torch.float64 else first.float()
    return (wide - target.to(wide.dtype)).square().mean()


class LowLinear(nn.Linear):
    """A linear layer with the casts that a user would write."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # torch's
        """Return bf16[..., out]."""
        bias = None if self.bias is None else self.bias.to(LOW)
        return F.linear(input.to(LOW), self.weight.to(LOW), bias)


class LowProduct(Conv1D):
    """The linear layer of GPT-2, whose weight is transposed, with such casts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return bf16[..., out]."""
        return F.linear(x.to(LOW), self.weight.t().to(LOW), self.bias.to(LOW))


def by_hand(model: nn.Module) -> nn.Module:
    """Return ``model`` with hand-written casts in its linear layers."""
    for part in model.modules():
        if type(part) is nn.Linear:
            part.__class__ = LowLinear
        elif type(part) is Conv1D:
            part.__class__ = LowProduct
        elif isinstance(part, nn.LayerNorm):
            part.register_forward_pre_hook(lambda _, x: (x[0].float(),))
    return model


def rivals(
    name: str, shape: tuple[int, int], size: zoo.Size = SIZE
) -> tuple[dict[str, nn.Module], dict[str, Run], zoo.Case]:
    """Return a model in each form, each form as a call, and what they came from."""
    model, args, kwargs = case(name, shape, size)
    models = {
        key: copy.deepcopy(model)
        for key in (
            *("float32", "autocast", "bf16", "bf16, recompute", "autocast-cpu"),
            *("by hand", "cast"),
        )
    }
    by_hand(models["by hand"])
    models["cast"] = models["cast"].to(LOW)
    low = amprewrite.convert(models["bf16"], args=args, kwargs=kwargs)
    again = amprewrite.convert(
        models["bf16, recompute"], args=args, kwargs=kwargs, recompute=True
    )
    same = amprewrite.convert(
        models["autocast-cpu"], "autocast-cpu", args=args, kwargs=kwargs
    )

    def autocast() -> object:
        with torch.autocast("cpu", LOW):  # dynamo does not trace it as a decorator
            return models["autocast"](*args, **kwargs)

    cast = tuple(a.to(LOW) if a.is_floating_point() else a for a in args)
    runs: dict[str, Run] = {
        "float32": lambda: models["float32"](*args, **kwargs),
        "autocast": autocast,
        "bf16": lambda: low(*args, **kwargs),
        "bf16, recompute": lambda: again(*args, **kwargs),
        "autocast-cpu": lambda: same(*args, **kwargs),
        "by hand": lambda: models["by hand"](*args, **kwargs),
        "cast": lambda: models["cast"](*cast, **kwargs),
    }
    return models, runs, (model, args, kwargs)


def gradients(model: nn.Module, run: Run) -> torch.Tensor:
    """Return all gradients in one vector of float64."""
    model.zero_grad()
    loss_of(run()).backward()
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).double().flatten()
        for p in model.parameters()
    ]
    model.zero_grad()
    return torch.cat(parts)


def memory_and_errors(name: str) -> dict[str, Any]:
    """Return bytes kept for backward and errors of gradients of one model."""
    models, runs, (model, args, kwargs) = rivals(name, MODELS[name])
    wide = copy.deepcopy(model).double()
    given = tuple(a.double() if a.is_floating_point() else a for a in args)
    exact = gradients(wide, lambda: wide(*given, **kwargs))
    for run in runs.values():  # what a first call makes for later ones is no residual
        loss_of(run())
    bytes_of = {k: kept_bytes(lambda r=r: loss_of(r())) for k, r in runs.items()}
    found = {key: gradients(models[key], run) for key, run in runs.items()}
    return {
        "bytes kept for backward": bytes_of["float32"],
        "bytes / float32": {k: v / bytes_of["float32"] for k, v in bytes_of.items()},
        "relative error of gradients": {
            k: float((g - exact).norm() / exact.norm()) for k, g in found.items()
        },
    }


def whole_step(run: Run, optimizer: torch.optim.Optimizer) -> None:
    """Run forward, backward and the optimizer."""
    loss_of(run()).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_times(name: str, rounds: int, *, compiled: bool) -> dict[str, float]:
    """Return medians of the time of a whole step over float32's in the same round.

    Autocast is what users run eagerly, so that it is there both ways if ``compiled``.
    """
    models, runs, _ = rivals(name, TIMED, COMPILED if compiled else SIZE)
    if compiled:
        torch.compiler.reset()
        eager = runs["autocast"]
        runs = {key: torch.compile(run) for key, run in runs.items()}
        runs["autocast, eager"] = eager
        models["autocast, eager"] = models["autocast"]
    steps: dict[str, Run] = {}
    for key, run in runs.items():
        optimizer = torch.optim.AdamW(models[key].parameters(), lr=1e-4)

        steps[key] = partial(whole_step, run, optimizer)
    seconds: dict[str, list[float]] = {key: [] for key in steps}
    for number in range(rounds + 2):
        for key, step in steps.items():
            start = time.thread_time()
            step()
            if number > 1:
                seconds[key].append(time.thread_time() - start)
    full = seconds["float32"]
    return {
        key: statistics.median(a / b for a, b in zip(found, full, strict=True))
        for key, found in seconds.items()
    }


def network(seed: int = 0) -> nn.Sequential:
    """Return a network of two hidden layers, f32[n, 16] -> f32[n, 4]."""
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 4)).train()


def small_gradients(divisor: float, seed: int) -> dict[str, float]:
    """Return the last losses of runs in which the loss is divided by ``divisor``."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 16, generator=draws)
    labels = (x @ torch.randn(16, 4, generator=draws)).argmax(1)
    scalers: dict[str, Any] = {
        "float32": None,
        "float16": None,
        "float16, torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
        "float16, amprewrite GradScaler": GradScaler("cpu"),
        "bfloat16": None,
    }
    found: dict[str, float] = {}
    for key, scaler in scalers.items():
        model: Any = network(seed)
        policy = {"float1": "fp16", "bfloat": "bf16"}.get(key[:6])
        run: Any = model
        if policy and key != "float32":
            run = amprewrite.convert(model, policy, args=(x,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3 * divisor, momentum=0.9)
        for _ in range(100):
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), labels) / divisor
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        with torch.no_grad():
            found[key] = float(F.cross_entropy(model(x), labels))
    model = network(seed)
    with torch.no_grad():
        found["at the start"] = float(F.cross_entropy(model(x), labels))
    return found


def digits_losses(divisor: float, seed: int, steps: int = 40) -> dict[str, float]:
    """Return losses on scikit-learn's digits after steps of Adam on ``loss / divisor``.

    A network of two hidden layers as torch makes it, and the mean cross entropy of all
    1797 images. Adam's eps is divided too, so that in exact arithmetic no step depends
    on the divisor.
    """
    held: Any = load_digits()
    x, labels = torch.tensor(held.data / 16).float(), torch.tensor(held.target)
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    found: dict[str, float] = {}
    for key in ("float32", "float16", "float16, amprewrite GradScaler", "bfloat16"):
        torch.manual_seed(seed)
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(64, 10)).train()
        with torch.no_grad():
            found.setdefault("at the start", float(F.cross_entropy(model(x), labels)))
        run: Any = model
        if key != "float32":
            policy = "bf16" if key == "bfloat16" else "fp16"
            run = amprewrite.convert(model, policy, args=(x,))
        scaler = GradScaler("cpu", enabled="GradScaler" in key)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-8 / divisor)
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(run(x), labels) / divisor).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            found[key] = float(F.cross_entropy(model(x), labels))
    return found


def low_weights(seed: int) -> dict[str, Any]:
    """Return the last losses of runs with weights in bfloat16, and what was lost."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 16, generator=draws)
    teacher = network(seed + 100)
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.5)
    y = teacher(x).detach()
    kinds = ("float32 masters", "nearest", "stochastic", "kahan")
    found: dict[str, Any] = {}
    for kind in (*kinds, *(f"{k}, low moments" for k in kinds[1:])):
        model = network(seed)
        rounding: Any
        rounding, _, moments = kind.partition(", ")
        masters = rounding == kinds[0]
        inner = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
        optimizer: Any = inner
        if not masters:
            model = model.to(LOW)
            inner = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
            stored: Any = "low" if moments else "full"
            optimizer = LowWeights(inner, rounding, moments=stored, seed=seed)
        run: Any = model
        if masters:
            run = amprewrite.convert(model, args=(x[:128],))
        rows = torch.Generator().manual_seed(seed)
        for _ in range(1000):
            index = torch.randint(0, len(x), (128,), generator=rows)
            given = x[index] if masters else x[index].to(LOW)
            optimizer.zero_grad()
            (run(given).float() - y[index]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            loss = float((model.double()(x.double()) - y).square().mean())
        found[kind] = {"loss": loss}
        if not masters:
            lost = optimizer.lost
            found[kind] |= {"unchanged": lost.share, "shortfall": lost.shortfall}
    return found


def machine(rounds: int) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "what": "step times and bytes are ratios to float32; below 1 is less",
        "device": platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16_matmul": torch.ops.mkldnn._is_mkldnn_bf16_supported(),  # noqa: SLF001  # torch has no public way to ask
        "torch": torch.__version__,
        "transformers": zoo.transformers.__version__,
        "rounds": rounds,
    }


def main() -> None:
    """Measure the tables that are asked for, and write JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=["gpt2", "vit", "resnet"])
    parser.add_argument("--tables", nargs="+", default=list("abcdefg"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds, models, rounds = range(options.seeds), options.models, options.rounds
    tables: dict[str, tuple[str, Callable[[], Any]]] = {
        "a": (
            "fp16, loss / 2**17",
            lambda: [small_gradients(2.0**17, s) for s in seeds],
        ),
        "b": ("fp16, loss / 4096", lambda: [small_gradients(4096.0, s) for s in seeds]),
        "c": ("low weights", lambda: [low_weights(seed) for seed in seeds]),
        "d": (
            "memory and gradients",
            lambda: {m: memory_and_errors(m) for m in models},
        ),
        "e": (
            "step time / float32",
            lambda: {m: step_times(m, rounds, compiled=False) for m in models},
        ),
        "f": (
            "step time / float32, compiled",
            lambda: {m: step_times(m, rounds, compiled=True) for m in models},
        ),
        "g": (
            "fp16, digits, loss / 4096",
            lambda: [digits_losses(4096.0, seed) for seed in seeds],
        ),
    }
    for letter in options.tables:
        name, measure = tables[letter]
        row = measure()
        out: Path = options.out
        found = json.loads(out.read_text("utf-8")) if out.exists() else {}
        if isinstance(row, dict):  # by model; others stay as they were measured
            row = {**found.get(name, {}), **row}
        found |= {**machine(rounds), name: row}
        out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(name, json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
