"""No cast is lost, whatever JAX has traced before."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

from amprewrite.frameworks.jaxpr.capture.cast_intent import restore_casts
from amprewrite.frameworks.jaxpr.capture.trace import Tracer
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Program, all_steps

FULL = jnp.float32
X = jnp.ones((4, 8))

Function = Callable[[Any], Any]


def norm(x: Any) -> Any:
    """Cast, and cast back."""
    return (jnp.tanh(x.astype(FULL)) * 2).astype(x.dtype)


def up(x: Any) -> Any:
    """Do nothing but cast."""
    return x.astype(FULL)


def is_low(x: Any) -> bool:
    return x.dtype == jnp.bfloat16


def careful(x: Any) -> Any:
    """Cast only where the dtype is low."""
    return x.astype(FULL) if is_low(x) else x


class Layer:
    """Casts in its call, its method and its property."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return norm(x) * self.scale

    def method(self, x: Any) -> Any:
        if x.dtype != FULL:
            x = x.astype(FULL)
        return jnp.tanh(x) * self.scale

    def whole(self, x: Any) -> Any:
        return self.method(x) + 1


def executed(text: str, file: str) -> Any:
    """Return the function ``f`` of a module without a source that can be read."""
    scope: dict[str, Any] = {"jnp": jnp, "jax": jax, "norm": norm}
    exec(compile(text, file, "exec"), scope)
    return scope["f"]


def make(scale: float) -> Function:
    """Return a closure; the function that it calls makes no equation in float32."""

    def wide(x: Any) -> Any:
        return x.astype(FULL) if x.dtype.itemsize < 4 else x

    def inner(x: Any) -> Any:
        return jnp.tanh(wide(x)) * scale

    return inner


def derived() -> Function:
    """Return a function with a derivative of its own."""

    @jax.custom_jvp
    def function(x: Any) -> Any:
        return norm(x)

    function.defjvp(lambda x, t: (function(*x), t[0]))
    return function


def table(x: Any) -> Any:
    """Look the dtype up."""
    wanted = {jnp.dtype(FULL): None, jnp.dtype(jnp.bfloat16): FULL}[x.dtype]
    return jnp.tanh(x if wanted is None else x.astype(wanted)) * 2


CASTING: dict[str, Callable[[], Function]] = {
    "function": lambda: jax.jit(norm),
    "no equation": lambda: jax.jit(up),
    "branch": lambda: careful,
    "jitted branch": lambda: jax.jit(careful),
    "table": lambda: jax.jit(table),
    "partial": lambda: jax.jit(functools.partial(lambda _, x: norm(x), 2)),
    "lambda": lambda: jax.jit(lambda x: x.astype(jnp.float32) * 2),
    "class": lambda: jax.jit(Layer(2.0)),
    "unnamed and empty": lambda: jax.jit(jax.vmap(functools.partial(up))),
    "method": lambda: jax.jit(Layer(2.0).whole),
    "closure": lambda: make(2.0),
    "nested": lambda: jax.jit(lambda x: jax.jit(norm)(x) + 1),
    "scan": lambda: jax.jit(
        lambda x: lax.scan(lambda h, _: (norm(h), None), x, None, length=2)[0]
    ),
    "while": lambda: jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, h: norm(h), x)),
    "cond": lambda: jax.jit(lambda x: lax.cond(x[0, 0] > 0, norm, lambda h: h, x)),
    "custom_jvp": derived,
    "checkpoint": lambda: jax.checkpoint(norm),
    "gradient": lambda: jax.grad(lambda x: jax.jit(norm)(x).sum()),
    "executed": lambda: jax.jit(
        executed("def f(x): return x.astype(jnp.float32) * 2", "<string>")
    ),
    "another file": lambda: jax.jit(executed("def f(x): return norm(x)", "/m.py")),
}


def restored(tracer: Tracer) -> Program:
    program = inline(tracer.trace((X,), {}).closed)
    low, _ = tracer.trace_low((X,), {}, "bfloat16")
    return restore_casts(program, inline(low), ("bfloat16", "float32"))


def casts(program: Program) -> list[tuple[str, str]]:
    return [(s.name, s.chosen) for s in all_steps(program.steps) if s.chosen]


@pytest.mark.parametrize("build", CASTING.values(), ids=CASTING)
def test_a_cast_is_found_wherever_jax_has_traced_it_before(
    build: Callable[[], Function],
) -> None:
    """It is traced by JAX, then by a first conversion, then by three others."""
    casting = build()
    jax.jit(casting)(X)
    callers: list[Function] = [
        lambda x: casting(x) * 2,
        lambda x: casting(x) * 3,
        lambda x: casting(jnp.sin(x)),
        jax.grad(lambda x: casting(x).sum()),
    ]
    for call in callers:
        assert casts(restored(Tracer(call))) or call is callers[-1]
