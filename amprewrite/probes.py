"""Public functions that look into runs of a model; their imports run when called."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from amprewrite.errors import ArgumentError, UnsupportedError, warn
from amprewrite.measure.exponents import ExponentHistogram
from amprewrite.verify import OpError, Report


def histogram(
    model: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    gradients: bool = True,
) -> ExponentHistogram:
    """Run a model once, and return the exponents of its numbers.

    They show the share of weights, activations and gradients that a format loses, and
    the loss scale that would save them. In torch each result of a function is a tensor,
    views left out; in JAX each float array of an equation, where functions of JAX under
    ``jit``, branches and ``while`` loops are one equation and the arrays of a ``scan``
    are stacked. Complex numbers are left out.

    Where some outputs are scalars they are losses: they get the gradient 1, and other
    outputs 0. Otherwise every float output gets unit Gaussian numbers, which say little
    about the gradients of a training: pass a model that returns its loss. Parameters,
    buffers, gradients and the state of random numbers stay as they are.

    Args:
        model: A ``torch.nn.Module``, ``torch.fx.GraphModule`` or
            ``torch.export.ExportedProgram``, plain or converted; with JAX a function
            whose first argument holds the parameters (any tree of arrays), or a module
            of Equinox or Flax.
        args: Positional arguments of the call; of a linen module its variables first.
        kwargs: Keyword arguments of the call.
        gradients: Whether to run backward too.

    Returns:
        The exponents of each tensor, with totals, shares by format, a loss scale, a
        plot and JSON. It costs a forward and a backward pass; each tensor is copied to
        the host in float64, in torch one after the other, in JAX all at once.

    Raises:
        ArgumentError: ``args`` is no tuple, or ``kwargs`` no mapping; or gradients are
            wanted, and there is no float output or no parameter.
        UnsupportedError: The model is of no supported kind.
    """
    from amprewrite.frameworks.base import check_arguments
    from amprewrite.measure.exponents.counting import count_exponents
    from amprewrite.registry import framework_of

    check_arguments(args, kwargs)
    framework, named = framework_of(model), dict(kwargs or {})
    return count_exponents(
        lambda look: framework.observe(model, args, named, look, gradients=gradients)
    )


DRIFT = 10.0
"""Factor on the median of earlier errors, above which an error is a drift.

Errors of calls with other numbers differ by a small factor: each is a sum of many
roundings.
"""


@dataclass(frozen=True)
class Sample:
    """A call of a converted model, compared with full precision.

    Attributes:
        call: Number of the call, from 1.
        seconds: Time that the comparison took, the call itself left out.
        report: The comparison; None if it failed.
        failure: The reason why there is no report; empty if there is one.
        usual: Median of the errors of the samples before; None for the first.
    """

    call: int
    seconds: float
    report: Report | None
    failure: str = ""
    usual: float | None = None

    @property
    def drift(self) -> float:
        """Error over the median of those before; 1 for the first."""
        if self.report is None or not self.usual:
            return 1.0
        return self.report.error / self.usual

    @property
    def nonfinite(self) -> tuple[OpError, ...]:
        """The ops that made values that are not finite, in program order.

        Their reference is finite there: the first one is where it began.
        """
        ops = () if self.report is None else self.report.ops
        return tuple(op for op in ops if op.nonfinite)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem of the report, each op as above, and a drift."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.report is None:
            yield f"not compared: {self.failure}"
            return
        yield from self.report.problems
        for op in self.nonfinite[:1]:
            others = len(self.nonfinite) - 1
            more = f"; {others} ops after it have such values too" if others else ""
            yield (
                f"{op.nonfinite} elements of {op.op} ({op.native}, {op.precision}) at "
                f"{op.path or 'the top'} are not finite and are in the reference{more}"
            )
        if not self.drift <= DRIFT:
            yield (
                f"drift: relative error {self.report.error:.3g}, "
                f"{self.drift:.3g} times the median of the samples before"
            )


def usual_error(samples: Sequence[Sample]) -> float | None:
    """Return the median of the finite errors of samples; None without any."""
    errors = [s.report.error for s in samples if s.report is not None]
    finite = [error for error in errors if isfinite(error)]
    return median(finite) if finite else None


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
