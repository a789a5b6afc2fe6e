"""A guard in production: sampled calls, compared with full precision beside them."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from amprewrite.errors import ArgumentError, UnsupportedError, warn
from amprewrite.probes.samples import Sample, usual_error
from amprewrite.verify import Report


class Monitor:
    """Sampler of the calls of a converted model, from :func:`monitor`.

    It is a context manager, and callable as the model is.
    """

    def __init__(
        self,
        converted: object,
        every: int,
        original: object,
        keep: int,
        on_problem: Callable[[Sample], None],
    ) -> None:
        """Attach to ``converted``."""
        from amprewrite.registry import framework_of

        self._framework = framework_of(converted)
        if original is None and self._framework.original(converted) is converted:
            msg = (
                f"this {type(converted).__name__} is not converted, so that there is "
                "nothing to compare it with; want a result of amprewrite.convert, or "
                "original= with the model in full precision"
            )
            raise UnsupportedError(msg)
        self._converted, self._original = converted, original
        self._every, self._on_problem = every, on_problem
        self._samples = deque[Sample](maxlen=keep)
        self._calls = 0
        self._open = True
        self._lock = threading.Lock()
        self._attached = self._framework.attach(converted, self)

    @property
    def calls(self) -> int:
        """Number of calls that were seen."""
        return self._calls

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The sampled calls that are kept, in order."""
        with self._lock:
            return tuple(self._samples)

    @property
    def reports(self) -> tuple[Report, ...]:
        """The reports of the sampled calls, without those that were not compared."""
        return tuple(s.report for s in self.samples if s.report is not None)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem of each sample, with the number of the call."""
        return tuple(
            f"call {sample.call}: {line}"
            for sample in self.samples
            for line in sample.problems
        )

    @property
    def ok(self) -> bool:
        """Whether no sample has a problem."""
        return not self.problems

    def close(self) -> None:
        """Detach from the model; samples stay."""
        self._open = False
        self._attached.detach()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # of the model
        """Call the model."""
        return self._attached.call(*args, **kwargs)

    def __enter__(self) -> Self:
        """Return the monitor itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach from the model."""
        self.close()

    def __str__(self) -> str:
        """Return the calls, the errors of the samples, their cost, and the problems."""
        found = self.samples
        head = f"{self.calls} calls, {len(found)} of them compared"
        if found:
            seconds = sum(sample.seconds for sample in found)
            head += f" in {seconds:.2g} s"
        if errors := [report.error for report in self.reports]:
            head += f", relative errors {min(errors):.3g} to {max(errors):.3g}"
        return "\n".join([head, *self.problems])

    def due(self) -> int:
        """Count a call; return its number if it is to be compared, else 0."""
        if not self._open:
            return 0
        with self._lock:
            self._calls += 1
            number = self._calls
        return 0 if (number - 1) % self._every else number

    def compare(
        self, number: int, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Callable[[], None]:
        """Compare a call; return the function that tells of its problems."""
        from amprewrite.measure.compare import first_line
        from amprewrite.measure.runs import Call
        from amprewrite.verify.compare import verify

        start, report, failure = perf_counter(), None, ""
        try:
            original = self._original
            if original is None:
                original = self._framework.original(self._converted)
            call = Call(args, dict(kwargs))
            report = verify(self._framework, original, self._converted, call)
        except Exception as error:  # noqa: BLE001  # a service goes on; the sample has it
            failure = first_line(error)
        seconds = perf_counter() - start
        with self._lock:
            usual = usual_error(tuple(self._samples))
            sample = Sample(number, seconds, report, failure, usual)
            self._samples.append(sample)

        def tell() -> None:
            if sample.problems:
                self._on_problem(sample)

        return tell


def monitor(
    converted: object,
    every: int,
    *,
    original: object = None,
    keep: int = 100,
    on_problem: Callable[[Sample], None] | None = None,
) -> Monitor:
    """Compare each ``every``-th call of a converted model with full precision.

    The call is compared before it runs, by :func:`amprewrite.verify`: against float64,
    op by op. The call itself is not touched: its result, random numbers, buffers and
    gradients are those of an unmonitored one. Found are errors beyond those that the
    plan's roundings explain, ops that make values that are not finite, ops that differ
    from the original's, and drift: an error far above the usual one.

    Calls of a torch module are seen as they are, by a hook of the module: serve the
    model itself. A function of JAX has no hooks: call the monitor in its place. Calls
    that are compiled or traced as a part of something larger are not seen.

    A comparison takes as long as some twenty calls in full precision, and needs the
    memory of several; so choose ``every`` in the hundreds. Between samples a call costs
    a count; after ``close()``, and without a monitor, nothing. Threads may call the
    model at the same time. In torch the comparisons run one after the other, and put
    the state of random numbers and buffers back: do not draw random numbers, or write
    buffers, in other threads meanwhile.

    Args:
        converted: A result of :func:`amprewrite.convert`, a function under ``jax.jit``
            included.
        every: Distance of the sampled calls; the first one is sampled.
        original: The model that was converted, in full precision. None takes
            ``amprewrite.original(converted)`` at each sample, with the current weights:
            those that are stored low stay rounded, so that their rounding is not seen.
        keep: Number of samples that are kept, the latest ones.
        on_problem: Called with each sample that has a problem, in the thread of the
            call; None warns. A comparison that fails is a problem, and no error.

    Returns:
        A monitor, attached until ``close()`` or the end of a ``with`` block, with
        ``samples``, ``reports`` and ``problems``.

    Raises:
        ArgumentError: ``every`` or ``keep`` is below 1.
        UnsupportedError: ``converted`` is of no supported kind, or is not converted
            and there is no ``original``.
    """
    for name, value in (("every", every), ("keep", keep)):
        if value < 1:
            raise ArgumentError(f"{name}={value}; want 1 or more")
    return Monitor(converted, every, original, keep, on_problem or _warn)


def _warn(sample: Sample) -> None:
    """Warn of the first problem of a sample."""
    first, *others = sample.problems
    more = f"; and {len(others)} more, see Monitor.problems" if others else ""
    warn(f"call {sample.call} of a monitored model: {first}{more}")
