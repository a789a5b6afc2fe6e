"""Run loops with a limit on iterations; one that does not end gives NaN.

A loop that iterates until a change is small may never end in low precision.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Mapping, Sequence
from typing import Any

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax
from amprewrite.frameworks.jaxpr.interpret.control_flow import HANDLERS, while_loop
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Handler, Writer
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import Step

PATIENCE = 4
"""Limit on a loop's iterations, as a multiple of those in full precision."""


def ending(iterations: Mapping[str, int]) -> dict[str, Handler]:
    """Return functions that run steps with bodies, such that every loop ends.

    Args:
        iterations: Trip count of each loop in full precision, by the name of its step.
    """

    def handler(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
        if step.name not in iterations:
            return while_loop(writer, step, env)
        most = PATIENCE * (iterations[step.name] + 1)

        def run(goes_on: Any, go: Any, start: list[Any]) -> list[Any]:
            def test(state: tuple[Any, list[Any]]) -> Any:
                return (state[0] < most) & goes_on(state[1])

            def turn(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
                return state[0] + 1, go(state[1])

            _, made = lax.while_loop(test, turn, (jnp.int32(0), start))
            return [_spoilt(value, goes_on(made)) for value in made]

        return while_loop(writer, step, env, run)

    return {**HANDLERS, "while": handler}


def _spoilt(value: Any, goes_on: Any) -> Any:
    """Return floats as NaN if their loop has not ended."""
    if not is_float(dtype_name(value)):
        return value
    return jnp.where(goes_on, jnp.asarray(jnp.nan, value.dtype), value)
