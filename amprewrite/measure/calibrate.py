"""Calibration of a device: shapes and operation counts of all that is timed."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from amprewrite.measure.timing import LOWS, Scope, medians
from amprewrite.plan.hardware import (
    FULL,
    Calibration,
    Casts,
    Contraction,
    Device,
    Elementwise,
    Kind,
)

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
    """Kernels of a framework on one device, with results of type ``T``."""

    @property
    def kinds(self) -> Collection[Kind]:
        """Kinds of contractions that the framework has."""
        ...

    @property
    def ops(self) -> Mapping[str, int]:
        """Other ops, by canonical name, with the elements that they read and write."""
        ...

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
