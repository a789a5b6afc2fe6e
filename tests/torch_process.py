"""What a process of torch shares between its threads, to compare before and after."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from amprewrite.frameworks.torch_fx.compat import settings, threads

Place = tuple[Any, str]
"""An owner and the name of one of its attributes."""


@contextmanager
def recorded_changes() -> Generator[list[Place]]:
    """Record what is replaced and flagged inside: all changes go through these two."""
    found = list[Place]()
    replaced, flagged = threads.replaced, threads.flagged

    def noted_function(owner: object, name: str, function: Any) -> Any:
        found.append((owner, name))
        return replaced(owner, name, function)

    def noted_flags(owner: object, *names: str) -> Any:
        found.extend((owner, name) for name in names)
        return flagged(owner, *names)

    with (
        mock.patch.object(threads, "replaced", noted_function),
        mock.patch.object(settings, "replaced", noted_function),
        mock.patch.object(threads, "flagged", noted_flags),
    ):
        yield found


def process_state(places: list[Place]) -> dict[str, Any]:
    """Return the attributes at ``places`` and the flags that torch has no owner for."""
    kept: dict[str, Any] = {
        f"{getattr(owner, '__name__', owner)}.{name}": vars(owner).get(name)
        for owner, name in places
    }
    native: Any = import_module("torch._C")
    dynamo: Any = import_module("torch._dynamo.config")
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level: Any = torch.autograd.function._SingleLevelFunction
    return kept | {
        "apply": vars(level).get("apply"),
        "attention": torch.backends.mha.get_fastpath_enabled(),
        "compiling": torch.compiler.is_compiling(),
        "exporting": torch.compiler.is_exporting(),
        "onednn": native._get_mkldnn_enabled(),
        "default dtype": torch.get_default_dtype(),
        "autocast": [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")],
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "modes": native._len_torch_dispatch_stack(),
        "function modes": native._len_torch_function_stack(),
        "filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "logger": (list(logger.filters), logger.disabled, logger.level),
        "matmul": torch.get_float32_matmul_precision(),
        "dynamo": dynamo.get_config_copy(),
        "random": torch.get_rng_state().tolist(),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of what is another."""
    return [name for name in before if before[name] != after[name]]
