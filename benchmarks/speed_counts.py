"""What a call of a model costs beside time: ops, casts, bytes moved, peak memory.

They are the same on every machine of a kind, also on one without bf16 instructions,
where times say little about others.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.placement_counter import Counter

Run = Callable[[], object]


class _Ops(Counter):
    """Counts ops also."""

    ops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.ops += not func.is_view
        return super().__torch_dispatch__(func, types, args, kwargs)


def counts(run: Run) -> dict[str, int]:
    """Return counts of one call: those of the graph of the plan, where it has one.

    Args:
        run: An eager call of a form of a model.
    """
    with torch.no_grad(), _Ops(frozenset()) as counter:
        run()
    found = counter.counted
    return {
        "ops": counter.ops,
        "casts": found.casts,
        "cast_bytes": found.cast_bytes,
        "op_bytes": found.op_bytes,
    }


def peak_bytes(run: Run) -> int:
    """Return the largest number of bytes that one call has allocated at a time.

    It holds for kernels of any kind, packed weights and workspaces also, but not for
    what a library allocates by itself.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.no_grad(),
        torch.profiler.profile(activities=activities, profile_memory=True) as profile,
    ):
        result = run()
    del result
    now = peak = 0
    untyped: Any = profile.profiler
    events = untyped.kineto_results.events()
    moves = [event for event in events if event.name() == "[memory]"]
    for event in sorted(moves, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
