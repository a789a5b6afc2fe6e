"""The devices of torch, with a small model on each."""

import torch
from torch import nn

from amprewrite.frameworks.base import Sample
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.frameworks.torch_fx.probes.calibrate import default_device, describe
from amprewrite.measure.timing import bfloat16_instructions

WIDTH, ROWS = 64, 32
"""Sizes of the model and of its argument."""


def samples() -> tuple[Sample, ...]:
    """Return a model for the CPU, and one for the accelerator if there is one."""
    kinds = dict.fromkeys((torch.device("cpu"), default_device()))
    return tuple(_sample(device) for device in kinds)


def _sample(device: torch.device) -> Sample:
    supported, why = _bfloat16(device)
    with fork_rng([]):
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        layers = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)
        model = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH)).eval().to(device)
        args = (torch.randn(ROWS, WIDTH).to(device),)
    return Sample(describe(device), supported, why, model, args)


def _bfloat16(device: torch.device) -> tuple[bool | None, str]:
    """Return whether ``device`` contracts bfloat16, and why; None if unknown."""
    if device.type == "cpu":
        return bfloat16_instructions()
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return supported, f"compute capability {major}.{minor}"
    return None, f"torch does not say it of {device.type}"
