"""What a call of a model costs beside time: ops, casts, bytes moved, peak memory.

They are the same on every machine of a kind, also on one without bf16 instructions,
where times say little about others.
"""

import itertools
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
    with torch.no_grad():
        return max(itertools.accumulate(_allocations(run), initial=0))


def kept_bytes(run: Run) -> int:
    """Return the bytes of what one call allocates and its result keeps alive.

    Of a loss they are those that the forward pass keeps for the backward pass, whatever
    holds them.
    """
    return sum(_allocations(run))


def _allocations(run: Run) -> list[int]:
    """Return the bytes that a call allocates, and below 0 those that it frees."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = run()
    del result
    untyped: Any = profile.profiler
    events = untyped.kineto_results.events()
    moves = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(moves, key=lambda e: e.start_ns())]
