"""Run a program op by op and observe its values: peaks, trip counts, failures.

Nothing is compiled, so that loops run one iteration after the other, in order. Values
inside a manual mesh are not observed, only its results.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.interpret.control_flow import HANDLERS, while_loop
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Handler, Writer
from amprewrite.frameworks.jaxpr.probes.backward_loops import run_body
from amprewrite.frameworks.jaxpr.probes.full_precision import Exact, Sample
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.program.inline import SHARED
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import RegionBoundary, Step

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
        inputs = watcher.wide.inputs(sample.inputs)
        for name, value in (*zip(sample.program.inputs, inputs, strict=True),):
            watcher.show("", name, value)
        for name, value in sample.program.constants.items():
            watcher.show("", name, value)
        watcher.program(inputs)
    return watcher.iterations


class _Watcher(Exact):
    def __init__(self, sample: Sample, look: Look) -> None:
        super().__init__(sample.program)
        self.handlers = {**HANDLERS, **WATCHED}
        self.look = look
        self.iterations: dict[str, int] = {}

    def show(self, op: str, name: str, value: Any) -> None:
        if is_inexact(dtype_name(value)) and not tracers.is_tracer(value):
            self.look(op, name, value)

    def run(self, steps: Iterable[Step], env: Env) -> None:
        for step in steps:
            super().run((step,), env)
            if not step.bodies:
                for name in step.results:
                    self.show(step.name, name, env.get(name))

    def pass_boundary(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Any:
        value = super().pass_boundary(boundary, env, which)
        self.show(boundary.op, boundary.makes, value)
        return value


def _while(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    assert isinstance(writer, _Watcher)

    def run(goes_on: Any, go: Any, carry: list[Any]) -> list[Any]:
        iterations = 0
        while bool(jnp.asarray(goes_on(carry))):
            carry = go(carry)
            iterations += 1
        writer.iterations[step.name] = max(
            iterations, writer.iterations.get(step.name, 0)
        )
        return carry

    return while_loop(writer, step, env, run)


def _scan(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    """Run a loop iteration by iteration; JAX must trace one without iterations."""
    with jax.disable_jit(step.eqn.params["length"] > 0):
        return HANDLERS["scan"](writer, step, env)


WATCHED: dict[str, Handler] = {
    **dict.fromkeys((*SHARED, "custom_vjp_call"), run_body),
    "scan": _scan,
    "while": _while,
}
"""Functions that run the steps of an observed program, by primitive."""
