"""Time, memory and kernels of one call."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.variants import Run

WARM_UP = 3
"""Calls before any is measured: kernels are chosen and memory is kept by then."""

CASTS = frozenset(("aten::_to_copy",))
"""Operators that convert a dtype by a kernel of their own, in the profiler's names."""


def seconds(runs: Mapping[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    """Return for each run the median, least and most seconds of a call.

    Runs take turns, so that a change of the clock rate hits all alike. A call ends when
    the device has done all that it launched.
    """
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(once(run))
    return {
        name: {
            "median": statistics.median(times),
            "least": min(times),
            "most": max(times),
        }
        for name, times in found.items()
    }


def once(run: Run) -> float:
    """Return the seconds of one call, until the device has done all of it."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def peak_bytes(run: Run) -> int | None:
    """Return the most bytes that a call had beside what was there; None on a CPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kernels(run: Run) -> dict[str, int]:
    """Return how many kernels a call launches, and how many conversions it makes.

    On a CPU, where nothing is launched, ``launched`` counts operators.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as seen:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events: list[Any] = list(seen.events() or ())
    on_device = [e for e in events if "CUDA" in str(e.device_type)]
    launched = [e for e in on_device if not e.name.startswith(("Memcpy", "Memset"))]
    casts = sum(e.name in CASTS for e in events)
    return {"launched": len(launched or events), "casts": casts}


def parameter_bytes(module: Any) -> int:
    """Return the bytes of all parameters and buffers; a shared one counts once."""
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}.values()
    return sum(t.numel() * t.element_size() for t in tensors)
