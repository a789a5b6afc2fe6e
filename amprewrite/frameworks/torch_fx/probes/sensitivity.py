"""First-order sensitivity of the outputs of an ATen graph to each rounding.

The graph runs once in full precision under autograd. Every value that may be rounded
passes a probe, an identity that saves it; a backward pass from a random direction in
the outputs gives the gradient ``g`` there, and with the rounding error ``delta`` of the
value the outputs move by ``g . delta`` along that direction. The error of a rounding is
the mean square over directions. An op that reads a value has a probe of its own, so
that only the gradient through that edge counts.

Weights that a contraction reads have no gradient computed: with the rounding error in
place of the weight, the contraction gives the change of its result, once for all
directions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

import torch
from torch.fx import Node

from amprewrite.dtypes.rounding import quantise_scaled
from amprewrite.errors import AmpError, ToleranceError, UnsupportedError
from amprewrite.execute.sensitivity import (
    FAILURES,
    no_floats,
    no_gradient,
    not_finite,
    sensitivity_of,
    value_of,
)
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    Observer,
    Operands,
    named_outputs,
)
from amprewrite.frameworks.torch_fx.probes.kernel_rounding import Kernels, kernel_error
from amprewrite.frameworks.torch_fx.probes.runner import floats, real
from amprewrite.frameworks.torch_fx.probes.segments import (
    Segments,
    backwards,
    segments_of,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Leaves, Reading
from amprewrite.ir import Op, ProgramGraph
from amprewrite.ir.graph import factor_indices, linear_factors
from amprewrite.plan.sensitivity import EightBits, Key, Probes, Sensitivity


def check_differentiable(op: Op, operands: Any, value: Any) -> None:
    """Check that gradients pass through an op that is no part of torch.

    Raises:
        UnsupportedError: They do not pass.
    """
    made = floats(value)
    if any("NotImplemented" in type(t.grad_fn).__name__ for t in made):
        raise no_gradient(op, None, REGISTER)
    if op.native.startswith("aten.") or not any(
        t.requires_grad for t in floats(operands)
    ):
        return
    if made and not any(t.requires_grad for t in made):
        raise no_gradient(op, None, REGISTER)


REGISTER = "register its gradient"
"""Cure of an op of the user that cannot be differentiated."""


def blamed(graph: ProgramGraph, error: Exception) -> UnsupportedError:
    """Return the error about a backward pass, with the op that it names."""
    text = str(error)
    for op in graph.ops:
        if op.native in text or op.native.rpartition(".")[0] + " " in text:
            return no_gradient(op, error, REGISTER)
    line = text.strip().partition("\n")[0]
    msg = f"tolerance needs gradients, and an op of the model has none: {line}"
    return UnsupportedError(msg)


Found = list[tuple[Key, torch.Tensor]]
"""Records of the probes in one backward pass: ``g . delta`` by key."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a value to the low dtype, or to 8 bits, and back.

    Attributes:
        low: The low dtype.
        saturated: Values with finite numbers that stay finite.
        kernels: Measured errors of values from kernels that round inside.
    """

    low: torch.dtype
    saturated: frozenset[str]
    kernels: dict[Key, torch.Tensor] = field(default_factory=dict[Key, torch.Tensor])

    def error(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        """Return the error of each element; 0 where ``value`` is not finite."""
        error = self.unchecked(value, key)
        finite = value.isfinite()
        return error if finite.all() else torch.where(finite, error, 0)

    def unchecked(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        """Return :meth:`error`, or NaN where ``value`` is not finite."""
        error = self.kernels.get(key)
        if error is not None:
            return error
        rounded = self._rounded(value, key)
        if rounded.dtype.itemsize == 1:  # torch does not widen 8 bits as it subtracts
            rounded = rounded.to(value.dtype)
        return torch.sub(rounded, value).to(value.dtype)

    def _rounded(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        if isinstance(key, EightBits):
            return quantise_scaled(value, key.format, key.scaling)
        saturates = (key if isinstance(key, str) else key[0]) in self.saturated
        return self.saturate(value) if saturates else value.to(self.low)

    def saturate(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` in the low dtype, clamped to its finite range."""
        limit = torch.finfo(self.low).max
        held = torch.where(value.isinf(), value, value.clamp(-limit, limit))
        return held.to(self.low)


class Probe(torch.autograd.Function):
    """Identity with a backward pass that records the effect of rounding its input.

    The token is a number that every probe reads, so that all are differentiated. A NaN
    gradient counts as zero: it arises where the infinite derivative of a root or a
    logarithm meets the zero of a ``where`` that drops its value.
    """

    @staticmethod
    def forward(  # autograd takes no keywords
        ctx: Any,
        value: torch.Tensor,
        token: torch.Tensor,  # noqa: ARG004  # makes the result need a gradient
        key: Key,
        rounding: Rounding,
        found: Found,
    ) -> torch.Tensor:
        """Return ``value`` unchanged."""
        ctx.save_for_backward(value)
        ctx.key, ctx.rounding, ctx.found = key, rounding, found
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Record ``g . delta`` and return the gradient without NaNs."""
        (value,), (grad,) = ctx.saved_tensors, grads
        moved = _product(grad, ctx.rounding.unchecked(value, ctx.key))
        if moved is None:
            grad = torch.where(grad.isnan(), 0, grad)
            moved = _careful_product(grad, ctx.rounding.error(value, ctx.key))
        ctx.found.append((ctx.key, moved))
        return grad, grad.new_zeros(()), None, None, None


class Shift(torch.autograd.Function):
    """Identity with a backward pass that records the effect of a change of its input.

    It stands for the probe of an operand in which an op is linear, such as a weight:
    the change of the result is known beforehand, so that no gradient of the operand is
    computed in any of the backward passes.
    """

    @staticmethod
    def forward(  # autograd takes no keywords
        ctx: Any,
        value: torch.Tensor,
        token: torch.Tensor,  # noqa: ARG004  # makes the result need a gradient
        key: Key,
        change: torch.Tensor,
        found: Found,
    ) -> torch.Tensor:
        """Return ``value`` unchanged; a rounding adds ``change`` to it."""
        ctx.key, ctx.change, ctx.found = key, change, found
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Record ``g . change`` and return the gradient without NaNs."""
        (grad,) = grads
        moved = _product(grad, ctx.change)
        if moved is None:
            grad = torch.where(grad.isnan(), 0, grad)
            change = torch.where(ctx.change.isnan(), 0, ctx.change)
            moved = _careful_product(grad, change)
        ctx.found.append((ctx.key, moved))
        return grad, grad.new_zeros(()), None, None, None


def _product(grad: torch.Tensor, delta: torch.Tensor) -> torch.Tensor | None:
    """Return ``grad . delta``; None if it is not finite.

    If it is, so is every element of ``grad``: that saves the tests of the elements.
    """
    wide = torch.float64 if grad.dtype.itemsize < 4 else None  # noqa: PLR2004  # bytes
    moved = (grad * delta).sum(dtype=wide)
    return moved.double() if isfinite(float(moved)) else None


def _careful_product(grad: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return ``grad . delta``, without elements that have no delta."""
    moved = torch.where(delta == 0, 0, grad * delta)  # where g is infinite, too
    return moved.sum(dtype=torch.float64)


Rays = list[list[torch.Tensor]]
"""Random directions: a gradient for each output in each."""

Scales = Callable[[Mapping[str, torch.Tensor]], Mapping[str, float]]
"""Function from outputs by path to the factor on each output's error."""


def measure_sensitivity(
    reading: Reading, probes: Probes, inputs: Sequence[Any], scales: Scales
) -> Sensitivity:
    """Return the error of every rounding in ``probes``.

    The caller restores the random state.

    Args:
        reading: The program.
        probes: The roundings to measure.
        inputs: A value for each placeholder; the program may write to them.
        scales: Returns the factor on the error of each bounded float output; one over
            the norm of all outputs gives relative errors.

    Raises:
        ToleranceError: The outputs have no norm, or one that is bounded is not finite.
        UnsupportedError: No output is a float, or an op cannot be differentiated.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        prober = _Prober(reading, probes)
        outputs = prober.run(inputs)
        parts = {n: real(t) for n, t in outputs.items()}
        found = {n: t for n, t in parts.items() if t.is_floating_point()}
        if not found:
            raise no_floats("model")
        factors = scales(found)  # unbounded outputs have none, and may be infinite
        bounded = {name: t for name, t in found.items() if name in factors}
        broken = [name for name, t in bounded.items() if not bool(t.isfinite().all())]
        if broken:
            raise _not_finite(reading, inputs, broken[0], bounded[broken[0]])
        return prober.sensitivity(bounded, factors)


class _Prober(Observer):
    """Observer with a probe on every value that may be rounded."""

    def __init__(self, reading: Reading, probes: Probes) -> None:
        self.reading, self.probes = reading, probes
        low = torch_dtype(probes.low)
        self.rounding, self.kernels = Rounding(low, probes.saturated), Kernels(low)
        self.full = torch_dtype(probes.full)
        self.narrow = torch.finfo(low).max < torch.finfo(self.full).max / 2
        self.tokens: dict[torch.device, torch.Tensor] = {}
        self.found: Found = []
        self.peaks: dict[Key, torch.Tensor] = {}
        self.seen: dict[tuple[str, str], torch.Tensor] = {}
        self.shifts: dict[tuple[str, str], torch.Tensor] = {}
        self.segments: Segments | None = None
        self.probes_values = True

    def run(self, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Run the whole program and return its outputs by their paths."""
        module = self.reading.module
        held = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
        start = partial(Executor, module, module.graph, held, self)
        self.segments = segments_of(self.reading, self.probes, start)
        if self.segments is None:
            return named_outputs(module.graph, start().run())
        self.probes_values = False
        flat = self.segments.forwards()
        self.probes_values = True
        return named_outputs(module.graph, flat)

    def _forget(self) -> None:
        """Keep nothing of the segments that ran before."""
        for values in (self.seen, self.shifts, self.rounding.kernels):
            values.clear()

    def op_of(self, executor: Executor, node: Node) -> Op | None:
        """Return the op of a node; None if it has none, as an input."""
        return self.reading.graph.op_by_name.get(executor.prefix + node.name)

    def enters(self, executor: Executor, node: Node) -> bool:
        """Return whether the ops of a body are read one by one."""
        return self.op_of(executor, node) is None

    def on_read(self, executor: Executor, node: Node, operand: Node) -> Any:
        """Return an operand, with probes if the op may read it low."""
        value, op = executor.values[operand], self.op_of(executor, node)
        if op is None or not self.probes_values:
            return value
        leaves = self.reading.leaves.get(operand)
        return self._each(value, leaves, lambda v, name: self._read(v, name, op))

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op, without the probes of the result."""
        op = self.op_of(executor, node)
        if op is None:
            return executor.call(node, operands)
        if ops.region_name(node.target) == ops.GRAD_SWITCH:
            return None  # results without gradients have errors too
        if not self.probes_values:
            return executor.call(node, operands)
        if op.canonical == "detach":  # an error passes it as it passes any view
            value = operands[0][0].view_as(operands[0][0])
        else:
            try:
                value = executor.call(node, operands)
            except FAILURES as error:
                raise no_gradient(op, error, REGISTER) from error
            check_differentiable(op, operands, value)
            value = self._shifted(executor, node, op, value)
        stored = not self.probes.stored.isdisjoint(op.results)
        if stored and self.kernels.round_inside(op, operands):
            run = partial(executor.call, node)
            self._measure(run, operands, self.reading.leaves[node])
        return value

    def on_result(self, executor: Executor, node: Node, value: Any) -> Any:
        """Return a result, with probes if it may be stored low."""
        if not self.probes_values or self.op_of(executor, node) is None:
            return value
        return self._each(
            value,
            self.reading.leaves.get(node),
            lambda v, name: self._probe(v, name) if name in self.probes.stored else v,
        )

    def _measure(
        self, run: Callable[[Any], Any], operands: Operands, leaves: Leaves
    ) -> None:
        """Record the errors of an op with a kernel that rounds inside.

        A finite operand beyond the low range saturates: its own error is infinite.
        """
        errors = kernel_error(run, operands, self.full, self.rounding.saturate)
        self._each(errors, leaves, lambda e, n: self.rounding.kernels.update({n: e}))

    def _each(
        self, value: Any, leaves: Leaves, change: Callable[[torch.Tensor, str], Any]
    ) -> Any:
        if isinstance(leaves, str) and isinstance(value, torch.Tensor):
            return change(value, leaves)
        if isinstance(leaves, list) and pytrees.is_sequence(value):
            pairs = zip(value, leaves, strict=True)
            return [self._each(part, names, change) for part, names in pairs]
        return value

    def _read(self, value: torch.Tensor, name: str, op: Op) -> torch.Tensor:
        key, eight = (name, op.name), self.probes.eight_bits_at(name, op.name)
        keys = (
            *([key] if key in self.probes.read else ()),
            *([eight] if eight else ()),
        )
        if keys == (key,) and not value.requires_grad and name in self._linear(op):
            self.shifts[key] = value
            return value
        if keys and key not in self.seen:  # read twice by one op, it is rounded once
            for rounding in keys:
                value = self._probe(value, rounding)
            self.seen[key] = value
        return self.seen.get(key, value)

    def _linear(self, op: Op) -> list[str]:
        """Return the operands with an effect that is known from the op's results."""
        graph = self.reading.graph
        is_written = any(graph.storage(name) in graph.written for name in op.results)
        return [] if is_written else linear_factors(op)

    def _shifted(self, executor: Executor, node: Node, op: Op, value: Any) -> Any:
        """Return a result with the effects of operands in which the op is linear."""
        for name in self._linear(op):
            operand = self.shifts.pop((name, op.name), None)
            if operand is not None:
                error = {name: self.rounding.error(operand, (name, op.name))}
                read = partial(self._read_alone, executor, op, error)
                with torch.no_grad():
                    change = executor.call(node, executor.operands(node, read))
                value = self._apply(Shift, value, operand, (name, op.name), change)
        return value

    def _read_alone(
        self,
        executor: Executor,
        op: Op,
        error: Mapping[str, torch.Tensor],
        operand: Node,
    ) -> Any:
        """Return an operand: an error for one factor, and zeros for addends."""
        factors = {op.operands[index] for index in factor_indices(op)}

        def change(value: torch.Tensor, name: str) -> torch.Tensor:
            if name in error:
                return error[name]
            return value if name in factors else torch.zeros_like(value)

        leaves = self.reading.leaves.get(operand)
        return self._each(executor.values[operand], leaves, change)

    def _probe(self, value: torch.Tensor, key: Key) -> torch.Tensor:
        return self._apply(Probe, value, value, key, self.rounding)

    def _apply(
        self, probe: Any, value: torch.Tensor, held: torch.Tensor, key: Key, what: Any
    ) -> torch.Tensor:
        """Return ``value`` through a probe for the rounding of ``held``."""
        device = value.device
        if device not in self.tokens:
            self.tokens[device] = torch.zeros((), device=device, requires_grad=True)
        if self.narrow and held.numel() and not isinstance(key, EightBits):
            self.peaks[key] = held.detach().abs().amax()
        return probe.apply(value, self.tokens[device], key, what, self.found)

    def sensitivity(
        self, outputs: Mapping[str, torch.Tensor], scales: Mapping[str, float]
    ) -> Sensitivity:
        """Return the sensitivity from backward passes in random directions."""
        numbers = sum(tensor.numel() for tensor in outputs.values())
        count = self.probes.directions if numbers > 1 else 1  # a number has one
        draws = torch.Generator().manual_seed(0)
        rows: dict[Key, list[float]] = {key: [] for key in self.probes.keys}
        rays: Rays = []
        for _ in range(count):
            rays.append([])
            for name, tensor in outputs.items():
                drawn = torch.randn(tensor.shape, generator=draws)
                ray = drawn if numbers > 1 else torch.ones_like(drawn)
                rays[-1].append((ray * scales[name]).to(tensor.device, tensor.dtype))
        for moved in self._moves(outputs, rays):
            for key, row in rows.items():
                row.append(moved.get(key, 0.0))
        beyond = self._beyond()
        peaks = {value_of(key): peak for key, peak in beyond.items()}
        return sensitivity_of(rows, self.probes, beyond, peaks)

    def _moves(
        self,
        outputs: Mapping[str, torch.Tensor],
        rays: Rays,
    ) -> list[dict[Key, float]]:
        """Return the change along each of ``rays`` by each rounding."""
        totals = [defaultdict[Key, float](float) for _ in rays]
        try:
            for direction in self._passes(outputs, rays):
                for key, moved in self.found:
                    number = float(moved)
                    totals[direction][key] += number if isfinite(number) else inf
                self.found.clear()
        except AmpError:
            raise
        except FAILURES as error:
            raise blamed(self.reading.graph, error) from error
        return [dict(total) for total in totals]

    def _passes(
        self,
        outputs: Mapping[str, torch.Tensor],
        rays: Rays,
    ) -> Iterator[int]:
        """Pass back from the outputs; the direction comes after each pass."""
        if self.segments is None:
            return backwards(list(outputs.values()), rays, self.tokens.values())

        def ends(flat: Any) -> list[torch.Tensor]:
            named = named_outputs(self.reading.module.graph, flat)
            return [real(named[name]) for name in outputs]

        tokens = self.tokens.values()  # a view: segments add tokens
        return self.segments.backwards(self._forget, ends, rays, tokens)

    def _beyond(self) -> dict[str | tuple[str, str], float]:
        """Return the peaks of the values beyond the low range, by rounding.

        That includes values without a smooth effect on the outputs, as read by argmax.
        """
        limit = torch.finfo(self.rounding.low).max
        beyond: dict[str | tuple[str, str], float] = {}
        for key, tensor in self.peaks.items():
            assert not isinstance(key, EightBits)  # 8 bits saturate
            peak = float(tensor)
            if limit < peak < inf and value_of(key) not in self.probes.saturated:
                beyond[key] = peak
        return beyond


def _not_finite(
    reading: Reading, inputs: Sequence[Any], path: str, output: torch.Tensor
) -> ToleranceError:
    """Return the error of a program that is not finite in full precision."""
    kind = "NaN" if bool(output.isnan().any()) else "infinities"
    op = _Hunt(reading, torch.isnan if kind == "NaN" else torch.isinf).first(inputs)
    return not_finite(path, kind, op, "model")


class _Hunt(_Prober):
    """Finder of the first op with a result that is not finite."""

    def __init__(
        self, reading: Reading, test: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__(
            reading, Probes("float32", "float32", frozenset(), frozenset())
        )
        self.test = test
        self.op: Op | None = None

    def first(self, inputs: Sequence[Any]) -> Op | None:
        """Return the op; None if an input is not finite."""
        with torch.no_grad():
            self.run(inputs)
        return self.op

    def on_result(self, executor: Executor, node: Node, value: Any) -> Any:
        """Note the op if it is the first one."""
        op = self.op_of(executor, node)
        if self.op is None and op is not None:
            broken = any(bool(self.test(t).any()) for t in floats(value))
            self.op = op if broken else None
        return value
