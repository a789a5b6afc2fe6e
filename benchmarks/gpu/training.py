"""Training steps: time, memory and the loss beside float32, autocast and bfloat16."""

import gc
from collections.abc import Callable
from typing import Any

import torch

from amprewrite.training.torch import GradScaler
from benchmarks.gpu import meters, models
from benchmarks.gpu.table import Table
from benchmarks.gpu.variants import Run, allow_tf32, variant

WHAT = (
    "seconds of a step (forward, backward, AdamW), bytes beside what lives between "
    "steps at the peak, kernels, conversions, synchronisations of a step, losses of "
    "ten steps from one start; ratio: autocast's median over the form's"
)

MODELS = {"gpt2": 8, "resnet-50": 128}
"""Batches that fit in float32."""

FORMS = ("float32", "autocast", "cast", "promote")

SCALED = frozenset(("autocast", "promote"))
"""Forms with float32 parameters, whose loss is scaled in float16."""

SYNCHRONISES = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "aten::item")
"""Names that the profiler gives to what waits for the device."""

LOSSES = 10


def measure(table: Table, device: str, *, tiny: bool) -> None:
    """Fill ``table``: eager steps first."""
    allow_tf32(on=False)
    for compiler in ("eager",) if tiny else ("eager", "compiled"):
        for policy in ("bf16", "fp16"):
            for name, batch in list(MODELS.items())[: 1 if tiny else None]:
                table.row(
                    f"{name}, {policy}, {compiler}",
                    lambda n=name, b=batch, p=policy, c=compiler: _row(
                        n, b, p, c, device, tiny=tiny
                    ),
                    needs=0 if tiny else 60,
                )


def _row(
    name: str, batch: int, policy: str, compiler: str, device: str, *, tiny: bool
) -> dict[str, Any]:
    torch.compiler.reset()
    case = models.case(name, device, batch=batch, tiny=tiny)
    for part in case[0].modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # else the losses of two programs differ by their masks
    row: dict[str, Any] = {"policy": policy}
    steps: dict[str, Run] = {}
    for form in FORMS:
        try:
            run, module = variant(case, policy, form, compiler, train=True)
            step = _step(run, module, scaled=policy == "fp16" and form in SCALED)
            losses = [float(step()) for _ in range(LOSSES)]
            row[form] = {
                "losses": losses,
                "peak bytes": meters.peak_bytes(step),
                **meters.kernels(step),
                "synchronisations": _synchronisations(step),
            }
            steps[form] = step
        except Exception as error:  # noqa: BLE001  # a form that fails is a result
            row[form] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    found = meters.seconds(steps, 2 if tiny else 10)
    for form, times in found.items():
        row[form]["seconds"] = times
    if "autocast" in found:
        theirs = found["autocast"]["median"]
        row["ratio"] = {form: theirs / t["median"] for form, t in found.items()}
    gc.collect()
    return row


def _step(run: Run, module: Any, *, scaled: bool) -> Callable[[], torch.Tensor]:
    """Return a whole training step, which gives the loss.

    Args:
        run: The forward pass.
        module: Has the parameters.
        scaled: Whether the loss is scaled, as float16 wants it.
    """
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=parameters[0].is_cuda)
    scaler: Any = GradScaler(parameters[0].device.type) if scaled else None

    def step() -> torch.Tensor:
        value = _loss(run())
        if scaler is None:
            value.backward()
            optimizer.step()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        return value.detach()

    return step


def _loss(output: Any) -> torch.Tensor:
    """Return the mean square distance of the first output to fixed targets."""
    first = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    draws = torch.Generator(first.device).manual_seed(0)
    target = torch.randn(first.shape, generator=draws, device=first.device)
    return (first.float() - target).square().mean()


def _synchronisations(step: Run) -> int | None:
    """Return how often a step waits for the device; None on a CPU."""
    if not torch.cuda.is_available():
        return None
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as seen:
        step()
    return sum(event.name in SYNCHRONISES for event in seen.events() or ())
