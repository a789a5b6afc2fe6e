"""Pass values into and out of the bodies of loops, branches and rules."""

from collections.abc import Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Writer
from amprewrite.frameworks.jaxpr.program.program import Body, Step


def entering(writer: Writer, body: Body, env: Env) -> list[Any]:
    """Return the values that enter ``body`` by boundaries, in order."""
    return [
        writer.pass_boundary(enter, env) for enter in body.enters if enter is not None
    ]


def inside(writer: Writer, body: Body, outer: Env, entered: Sequence[Any]) -> Env:
    """Run ``body`` on the values that entered it, and return all its values."""
    names = (e.makes for e in body.enters if e is not None)
    env = {**outer, **dict(zip(names, entered, strict=True))}
    writer.run(body.steps, env)
    return env


def leaving(writer: Writer, step: Step, env: Env, which: int = 0) -> list[Any]:
    """Return the values that leave a body by boundaries, in order."""
    return [writer.pass_boundary(leave, env, which) for leave in step.leaves if leave]
