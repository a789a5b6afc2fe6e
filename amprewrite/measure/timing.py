"""Timings on a device: the clock, the contractions and ops, and a calibration."""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from amprewrite.plan.hardware import (
    FULL,
    Calibration,
    Casts,
    Contraction,
    Device,
    Elementwise,
    Kind,
)

LOWS = ("bfloat16", "float16")
"""Low dtypes that are timed."""

INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16",
                "bf16", "fphp", "asimdhp")  # fmt: skip
"""Flags of ``/proc/cpuinfo`` that affect the speed of low contractions."""

BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Instructions that contract bfloat16: of x86, tiles of x86, of ARM."""

CHUNK = 2e-4
"""Least seconds of a timed chunk of calls: a clock read takes 1e-7."""

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "RESOURCE_EXHAUSTED")
"""Parts of messages of a full device: of CUDA, of torch's CPU allocator, of XLA."""

HOPELESS = 3.0
"""Ratio of the least times of calls from which on a run is not timed longer."""

TRIES, TRIED = 5, 0.1
"""Calls of a run before it counts as slow, and the seconds after which none follows.

A call that another process interrupts takes some milliseconds more, fifty times as long
as a small program.
"""

MOST_REPEATS, LEAST_ROUNDS, MOST_ROUNDS = 200, 5, 60


@dataclass(frozen=True)
class Scope:
    """Sizes of the contractions and ops that are timed.

    Attributes:
        products: Rows and side of ``(rows, side) @ (side, side)``.
        batched: The same for batched products, ``batches`` each.
        convolutions: Channels, groups and side of the image, with a kernel of 3 x 3.
        attention: Lengths, with 4 heads of 64.
        batches: Number of products in a batch.
        elements: Elements of the tensors of casts and other ops; on a CPU they fit into
            a cache near the processor.
        seconds: Seconds for one contraction, all dtypes together.
    """

    products: tuple[tuple[int, int], ...]
    batched: tuple[tuple[int, int], ...]
    convolutions: tuple[tuple[int, int, int], ...]
    attention: tuple[int, ...]
    batches: int = 16
    elements: int = 2**18
    seconds: float = 0.5


CPU = Scope(
    products=(
        *((1, 32), (1, 128), (1, 512), (1, 2048), (1, 4096)),
        *((8, 32), (8, 128), (8, 512), (8, 1024)),
        *((32, 32), (32, 128), (32, 512)),
        *((64, 64), (64, 256), (64, 512)),
        *((128, 128), (128, 512), (256, 256), (256, 512), (512, 512)),
    ),
    batched=((1, 64), (32, 32), (64, 64), (128, 128)),
    convolutions=((16, 1, 32), (64, 1, 16), (64, 64, 32)),
    attention=(32, 128),
)
"""Shapes for CPUs: half a minute for each framework on one core without bfloat16."""

ACCELERATOR = Scope(
    products=(
        *CPU.products,
        *((8, 4096), (64, 2048), (64, 4096), (512, 1024), (512, 4096)),
        *((2048, 2048), (4096, 4096)),
    ),
    batched=(*CPU.batched, (512, 512)),
    convolutions=(*CPU.convolutions, (64, 1, 128), (256, 1, 64)),
    attention=(32, 128, 512, 2048),
    elements=2**26,
)
"""Shapes for accelerators: larger ones too, which keep the device busy."""


def scope_of(kind: str) -> Scope:
    """Return the sizes for a kind of device, such as ``cpu`` or ``cuda``."""
    return CPU if kind == "cpu" else ACCELERATOR


def medians(
    runs: Mapping[str, Callable[[], Any]],
    wait: Callable[[Any], object],
    seconds: float,
) -> dict[str, float]:
    """Return the median seconds of each run, interleaved in one process.

    Other load on the machine varies over time, and slows down consecutive runs alike:
    so for all runs but the first, the median ratio to the first one in the same round
    is used.

    Args:
        runs: The timed functions, by name.
        wait: Waits until the result of a run is complete.
        seconds: Approximate limit for all of it; at least five rounds are run.
    """
    repeats: dict[str, int] = {}
    for name, run in runs.items():
        wait(run())  # the first call allocates, or compiles
        start = time.perf_counter()
        wait(run())
        once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = min(max(int(CHUNK / once), 1), MOST_REPEATS)
    found: dict[str, list[float]] = {name: [] for name in runs}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() < end):
        rounds += 1
        # Alternate the order: a run must not depend on its predecessor.
        for name, run in sorted(runs.items(), reverse=rounds % 2 == 0):
            wait(run())  # its data is in the cache then, whichever ran before
            start = time.perf_counter()
            result = None
            for _ in range(repeats[name]):
                result = run()
            wait(result)
            found[name].append((time.perf_counter() - start) / repeats[name])
    first = next(iter(runs))
    base = statistics.median(found[first])
    ratios = {
        name: [mine / its for mine, its in zip(times, found[first], strict=True)]
        for name, times in found.items()
    }
    return {name: base * statistics.median(ratios[name]) for name in runs}


def raced(
    runs: Mapping[str, Callable[[], Any]],
    wait: Callable[[Any], object],
    seconds: float,
) -> dict[str, float]:
    """Return the median seconds of each run; of the slow ones those of one call.

    A run of which a few calls all take :data:`HOPELESS` times as long as the fastest is
    not timed again: emulated kernels take a hundred times as long.

    Args:
        runs: The timed functions, by name.
        wait: Waits until the result of a run is complete.
        seconds: Approximate limit for all of it; see :func:`medians`.
    """

    def seconds_of(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        wait(run())
        return time.perf_counter() - start

    once: dict[str, float] = {}
    for name, run in runs.items():
        wait(run())  # the first call allocates, or compiles
        once[name] = seconds_of(run)
    most = HOPELESS * min(once.values())
    for name, run in runs.items():
        tried = [once[name]]
        while min(tried) > most and len(tried) < TRIES and sum(tried) < TRIED:
            tried.append(seconds_of(run))
        once[name] = min(tried)
    close = {name: run for name, run in runs.items() if once[name] <= most}
    return {**once, **medians(close, wait, seconds)}


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a device did not suffice."""
    message = str(error)
    return isinstance(error, MemoryError) or any(
        part.lower() in message.lower() for part in OUT_OF_MEMORY
    )


@cache
def processor(info: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """Return the model of the processor, and its floating-point instructions.

    Both are empty if the system does not report them.
    """
    text = info.read_text("utf-8", "replace") if info.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = flags[1].split() if flags else []
    have = " ".join(flag for flag in INSTRUCTIONS if flag in known)
    return (name[1].strip() if name else "", have)


def bfloat16_instructions(
    info: Path = Path("/proc/cpuinfo"),
) -> tuple[bool | None, str]:
    """Return whether the processor contracts bfloat16, and by which instructions.

    None if the system does not report the instructions.
    """
    _, instructions = processor(info)
    found = [flag for flag in BFLOAT16 if flag in instructions.split()]
    if not instructions:
        return None, "the system does not report the instructions of the CPU"
    return bool(found), ", ".join(found) or f"none of {', '.join(BFLOAT16)}"


HEADS, WIDTH = 4, 64
"""Number of heads of the attention that is timed, and the width of each."""

FEW = 8
"""Elements of an array that is cast in the time that it takes to start a cast."""

T = TypeVar("T")


@dataclass(frozen=True)
class Kernel:
    """Contraction to time.

    Attributes:
        kind: Kind of kernel.
        shapes: Shapes of its operands.
        thin: Smallest extent of one product.
        macs: Multiply-adds of one product.
        terms: Terms of each sum.
        batches: Number of products.
        groups: Groups of a convolution, which has a kernel of 3 x 3.
    """

    kind: Kind
    shapes: tuple[tuple[int, ...], ...]
    thin: int
    macs: int
    terms: int
    batches: int = 1
    groups: int = 1


class Bench(Protocol[T]):
    """Kernels of a framework on one device, with results of type ``T``.

    Attributes:
        kinds: Kinds of contractions that the framework has.
        ops: Other ops, by canonical name, with the elements that they read and write.
    """

    kinds: tuple[Kind, ...]
    ops: dict[str, int]

    def contraction(self, kernel: Kernel, dtype: str, /) -> Callable[[], T]:
        """Return a function that runs a contraction with operands of ``dtype``."""
        ...

    def repeats(self, kernel: Kernel, /) -> int:
        """Return the number of contractions in one call of that function."""
        ...

    def elementwise(self, op: str, dtype: str, /) -> Callable[[], T]:
        """Return a function that runs another op."""
        ...

    def cast(self, before: str, after: str, elements: int, /) -> Callable[[], T]:
        """Return a function that casts an array from one dtype to another."""
        ...

    def wait(self, result: T, /) -> object:
        """Wait until a result is complete."""
        ...


def calibrate(
    bench: Bench[T], device: Device, scope: Scope, *, emits: bool | None = None
) -> Calibration:
    """Time contractions, other ops and casts.

    Args:
        bench: Kernels of a framework.
        device: The device that they run on.
        scope: Shapes to time.
        emits: Whether low contractions are faster with full-precision sums; None if the
            framework has no such kernels.
    """
    dtypes = (FULL, *LOWS)

    def timed(runs: Mapping[str, Callable[[], T]]) -> dict[str, float]:
        return medians(runs, bench.wait, scope.seconds)

    def contraction(kernel: Kernel) -> Contraction:
        found = timed({d: bench.contraction(kernel, d) for d in dtypes})
        count = bench.repeats(kernel)
        return Contraction(
            kind=kernel.kind,
            thin=kernel.thin,
            macs=kernel.macs,
            batches=kernel.batches,
            seconds={name: seconds / count for name, seconds in found.items()},
        )

    def elementwise(op: str, elements: int) -> Elementwise:
        seconds = timed({d: bench.elementwise(op, d) for d in dtypes})
        return Elementwise(op=op, elements=elements, seconds=seconds)

    def casts(low: str) -> Casts:
        found = timed(
            {
                "down": bench.cast(FULL, low, scope.elements),
                "up": bench.cast(low, FULL, scope.elements),
                "launch": bench.cast(FULL, low, FEW),
            }
        )
        return Casts(elements=scope.elements, **found)

    kernels = (kernel for kernel in kernels_of(scope) if kernel.kind in bench.kinds)
    return Calibration(
        device=device,
        contractions=tuple(map(contraction, kernels)),
        elementwise=tuple(elementwise(*op) for op in bench.ops.items()),
        casts={low: casts(low) for low in LOWS},
        emits_accumulators=emits,
    )


def kernels_of(scope: Scope) -> Iterator[Kernel]:
    """Yield the contractions of ``scope``, as they are timed."""
    for rows, side in scope.products:
        yield product(rows, side)
    for rows, side in scope.batched:
        shapes = ((scope.batches, rows, side), (scope.batches, side, side))
        yield Kernel("batched", shapes, rows, rows * side**2, side, scope.batches)
    for channels, groups, image in scope.convolutions:
        inside, pixels = channels // groups * 9, image**2
        yield Kernel(
            kind="convolution",
            shapes=((1, channels, image, image), (channels, inside // 9, 3, 3)),
            thin=min(channels, inside, pixels),
            macs=channels * inside * pixels,
            terms=inside,
            groups=groups,
        )
    for length in scope.attention:
        shapes, macs = ((1, HEADS, length, WIDTH),) * 3, 2 * length**2 * WIDTH
        yield Kernel("attention", shapes, min(length, WIDTH), macs, length, HEADS)


def product(rows: int, side: int) -> Kernel:
    """Return the product of two matrices, ``(rows, side) @ (side, side)``."""
    shapes = ((rows, side), (side, side))
    return Kernel("product", shapes, rows, rows * side**2, side)
