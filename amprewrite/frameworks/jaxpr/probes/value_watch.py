"""Run a program op by op and observe its values: peaks, trip counts, failures.

Nothing is compiled, so that loops run one iteration after the other, in order. Values
inside a manual mesh are not observed, only its results.
"""

from collections.abc import Callable, Mapping
from typing import Any

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.executor import Turn
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Sample
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.program.inline import SHARED
from amprewrite.frameworks.jaxpr.program.program import RegionBoundary, Step, dtype_name

Look = Callable[[str, str, Any], None]
"""Callback for each float value: the name of its op, its own name, the value."""


def _unseen(op: str, name: str, value: Any) -> None:
    del op, name, value


def count_iterations(sample: Sample, look: Look = _unseen) -> Mapping[str, int]:
    """Run a program with a callback for its values; return the trip counts of loops.

    Args:
        sample: The program and its arguments.
        look: Callback for every float value, those from outside first.

    Returns:
        The largest trip count of each loop of unknown length, by its step's name.
    """
    watcher = _Watcher(sample, look)
    with tracers.evaluated_now(), jax.disable_jit():
        inputs = watcher.inputs(sample.inputs)
        for name, value in (*zip(sample.program.inputs, inputs, strict=True),):
            watcher.show("", name, value)
        for name, value in sample.program.constants.items():
            watcher.show("", name, value)
        watcher(inputs)
    return watcher.iterations


class _Watcher(Exact):
    in_place = frozenset((*SHARED, "custom_vjp_call"))

    def __init__(self, sample: Sample, look: Look) -> None:
        super().__init__(sample.program)
        self.look = look
        self.iterations: dict[str, int] = {}

    def show(self, op: str, name: str, value: Any) -> None:
        if is_inexact(dtype_name(value)) and not tracers.is_tracer(value):
            self.look(op, name, value)

    def on_result(self, step: Step, name: str, value: Any) -> Any:
        if not step.bodies:
            self.show(step.name, name, value)
        return value

    def on_pass(self, boundary: RegionBoundary, value: Any) -> Any:
        passed = super().on_pass(boundary, value)
        self.show(boundary.op, boundary.makes, passed)
        return passed

    def on_loop(self, step: Step, test: Turn, turn: Turn, start: list[Any]) -> Any:
        carry, iterations = start, 0
        while bool(jnp.asarray(test(carry))):
            carry = turn(carry)
            iterations += 1
        most = self.iterations.get(step.name, 0)
        self.iterations[step.name] = max(iterations, most)
        return carry

    def on_scan(
        self, step: Step, turn: Turn, carry: list[Any], slices: Any
    ) -> tuple[list[Any], Any]:
        """Run a loop iteration by iteration; JAX must trace a loop of no iterations."""
        with jax.disable_jit(step.eqn.params["length"] > 0):
            return super().on_scan(step, turn, carry, slices)
