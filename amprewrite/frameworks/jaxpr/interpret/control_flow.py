"""Run the steps with bodies, through the public functions of JAX.

Their own rules for differentiation and batching then apply to the rewritten bodies.
"""

from collections.abc import Callable, Sequence
from typing import Any

from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.interpret.custom_rules import custom_jvp, custom_vjp
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Handler, Writer
from amprewrite.frameworks.jaxpr.interpret.region_boundary import (
    entering,
    inside,
    leaving,
)
from amprewrite.frameworks.jaxpr.program.program import Body, Number, Step


def _scan(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    (body,), params = step.bodies, step.eqn.params
    consts, carries = equations.scan_counts(step.eqn)
    outer = writer.constants(env)
    kinds = [
        "const" if i < consts else "carry" if i < consts + carries else "slice"
        for i, enter in enumerate(body.enters)
        if enter is not None
    ]
    entered = entering(writer, body, env)

    def pick(kind: str) -> list[Any]:
        return [v for v, k in zip(entered, kinds, strict=True) if k == kind]

    fixed = pick("const")

    def turn(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        made = inside(writer, body, outer, [*fixed, *carry, *slices])
        left = leaving(writer, step, made)
        return left[:carries], left[carries:]

    carry, stacked = lax.scan(
        turn,
        pick("carry"),
        pick("slice"),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *stacked]


def while_loop(
    writer: Writer, step: Step, env: Env, run: Callable[..., Any] = lax.while_loop
) -> Sequence[Any]:
    """Run a loop; a batched one iterates until all rows end, and freezes ended rows.

    ``vmap`` makes a test of many rows, which JAX can run but its public function does
    not accept.

    Args:
        writer: Runs the program.
        step: The loop.
        env: Values outside of it.
        run: Runs the loop, given the test, a turn and the start.
    """
    test, turn = step.bodies
    outer = writer.constants(env)

    def split(body: Body, consts: int) -> tuple[list[Any], list[Any]]:
        flags = [i < consts for i, e in enumerate(body.enters) if e is not None]
        values = entering(writer, body, env)
        pairs = list(zip(values, flags, strict=True))
        return [v for v, f in pairs if f], [v for v, f in pairs if not f]

    tested, _ = split(test, step.eqn.params["cond_nconsts"])
    turned, start = split(turn, step.eqn.params["body_nconsts"])

    def holds(carry: list[Any]) -> Any:
        made = inside(writer, test, outer, [*tested, *carry])
        return writer.get(test.outputs[0], made)

    def goes_on(carry: list[Any]) -> Any:
        found = holds(carry)
        return found if jnp.ndim(found) == 0 else jnp.any(found)

    def go(carry: list[Any]) -> list[Any]:
        made = leaving(writer, step, inside(writer, turn, outer, [*turned, *carry]))
        found = holds(carry) if batched else True
        return [_chosen(found, n, o) for n, o in zip(made, carry, strict=True)]

    batched = bool(step.eqn.params["cond_jaxpr"].out_avals[0].shape)
    return run(goes_on, go, start)


def _chosen(found: Any, new: Any, old: Any) -> Any:
    """Return ``new`` in the rows of a batched loop that continue, else ``old``."""
    if found is True:
        return new
    missing = jnp.ndim(new) - jnp.ndim(found)
    return jnp.where(jnp.reshape(found, jnp.shape(found) + (1,) * missing), new, old)


def _cond(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    outer = writer.constants(env)

    def branch(which: int, body: Body) -> Callable[..., list[Any]]:
        def run(entered: list[list[Any]]) -> list[Any]:
            made = inside(writer, body, outer, entered[which])
            return leaving(writer, step, made, which)

        return run

    branches = [branch(i, body) for i, body in enumerate(step.bodies)]
    entered = [entering(writer, body, env) for body in step.bodies]
    return lax.switch(writer.get(step.operands[0], env), branches, entered)


def _shard_map(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    (body,), params = step.bodies, step.eqn.params
    outer = writer.constants(env)
    numbers = [e is None for e in body.enters]
    specs = [s for s, n in zip(params["in_specs"], numbers, strict=True) if not n]

    def run(*entered: Any) -> list[Any]:
        return leaving(writer, step, inside(writer, body, outer, entered))

    mapped = jax.shard_map(
        run,
        mesh=params["mesh"],
        in_specs=tuple(specs),
        out_specs=list(params["out_specs"]),
        axis_names=equations.manual_axes(step.eqn),
        check_vma=params["check_vma"],
    )
    return mapped(*entering(writer, body, env))


def _captured(step: Step, env: Env) -> tuple[list[str], list[Any]]:
    """Return the names that a shared body reads from outside, unique, and values."""
    names = [a for a in step.operands if not isinstance(a, Number)]
    unique = list(dict.fromkeys(names))
    return unique, [env[name] for name in unique]


def _shared(writer: Writer, step: Step, env: Env) -> tuple[Any, list[Any]]:
    """Return a shared body as a function of its captured values, and the values."""
    names, values = _captured(step, env)
    outer = writer.constants(env)

    def run(*captured: Any) -> list[Any]:
        named = dict(zip(names, captured, strict=True))
        return writer.shared_outputs(step, {**outer, **named})

    return run, values


def _checkpoint(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    run, values = _shared(writer, step, env)
    params = step.eqn.params
    kept = jax.checkpoint(
        run, policy=params["policy"], prevent_cse=params["prevent_cse"]
    )
    return kept(*values)


def _jit(writer: Writer, step: Step, env: Env) -> Sequence[Any]:
    """Run a jit that fixes shardings or donates; jits that only call are inlined."""
    run, _ = _shared(writer, step, env)
    names = [a for a in step.operands if not isinstance(a, Number)]
    firsts = [names.index(name) for name in dict.fromkeys(names)]
    positions = [i for i, a in enumerate(step.operands) if not isinstance(a, Number)]
    given = step.eqn.params["in_shardings"]
    shardings = tuple(
        equations.sharding_argument(given[positions[first]]) for first in firsts
    )
    left = [equations.sharding_argument(s) for s in step.eqn.params["out_shardings"]]
    _, values = _captured(step, env)
    return jax.jit(run, in_shardings=shardings, out_shardings=left)(*values)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("checkpoint", "remat2", "remat"), _checkpoint),
    **dict.fromkeys(("jit", "pjit"), _jit),
    "cond": _cond,
    "custom_jvp_call": custom_jvp,
    "custom_vjp_call": custom_vjp,
    "scan": _scan,
    "shard_map": _shard_map,
    "while": while_loop,
}
"""Functions that run steps with bodies, by primitive."""
