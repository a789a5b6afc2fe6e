"""Random JAX programs: values of shape ``[4, 8]`` through every construct of JAX.

A program is a list of steps, each with the number of the value that it reads. A step of
:data:`tests.properties.jax_steps.PLAIN` computes; one of :data:`NESTED` runs a smaller
program inside a loop, a branch, a checkpoint, a custom rule or a transformation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.properties.jax_steps import COUNTED, PLAIN, ROWS, WIDTH, Held, held

SHIPPED = jax.checkpoint_policies
POLICIES: Mapping[str, Any] = {
    "none": None,
    "everything": SHIPPED.everything_saveable,
    "nothing": SHIPPED.nothing_saveable,
    "dots": SHIPPED.dots_saveable,
    "unbatched": SHIPPED.dots_with_no_batch_dims_saveable,
    "names": SHIPPED.save_only_these_names("named"),
    "other names": SHIPPED.save_any_names_but_these("named"),
    "either": SHIPPED.save_from_both_policies(
        SHIPPED.dots_with_no_batch_dims_saveable,
        SHIPPED.save_only_these_names("named"),
    ),
}

Body = Callable[[Held, Any], Any]
"""Computes a value of the same shape and dtype."""

DEPTH = 2
"""How deep programs stand in each other."""

NESTING = 0.35
"""How often a step runs a program."""


@dataclass(frozen=True)
class Block:
    """A program of one value.

    Attributes:
        text: What it does, for the message of a failure.
        run: Runs it.
        reverse: Whether JAX can differentiate it backwards.
        forward: Whether JAX can differentiate it forwards.
    """

    text: str
    run: Body
    reverse: bool = True
    forward: bool = True


@dataclass(frozen=True)
class Program:
    """A random program and its arguments.

    Attributes:
        text: What it does.
        function: The program.
        args: What it is called with.
        reverse: Whether JAX can differentiate it backwards.
    """

    text: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = field(repr=False)
    reverse: bool = True


def program(seed: int, *, wide: bool = False) -> Program:
    """Return the random program number ``seed``; in float64 if ``wide``."""
    rng = Random(seed)
    given, hidden = held(rng, wide=wide), held(rng, wide=wide)
    closes = rng.random() < 0.3  # over its weights
    blocks = [block(rng, 0) for _ in range(rng.randint(1, 2))]
    counts = rng.sample(sorted(COUNTED), 2)
    shape = rng.choice(["dict", "tuple", "one"])

    def function(weights: Any, x: Any) -> Any:
        use = hidden if closes else weights
        values = [x]
        for part in blocks:
            values.append(part.run(use, values[-1]))
        if shape == "one":
            return values[-1]
        whole = {name: COUNTED[name](use) for name in counts}
        if shape == "tuple":
            return values[-1], None, whole
        return {"last": values[-1], "none": None, "all": [values[-2], 3], **whole}

    text = "\n".join(
        [f"seed {seed}, gives {shape} {counts}", *(b.text for b in blocks)]
    )
    drawn = np.random.default_rng(seed).standard_normal((ROWS, WIDTH))
    x = jnp.asarray(drawn, jnp.float64 if wide else jnp.float32)
    return Program(text, function, (given, x), all(b.reverse for b in blocks))


def block(rng: Random, depth: int) -> Block:
    """Return a random block of a few steps."""
    parts = [_part(rng, depth) for _ in range(rng.randint(1, 2 if depth else 4))]

    def run(held: Held, x: Any) -> Any:
        values = [x]
        for read, other, join, step in parts:
            made = step.run(held, values[-1 - read % len(values)])
            made = JOINS[join](made, values[-1 - other % len(values)])
            assert (made.shape, made.dtype) == (x.shape, x.dtype), step.text
            values.append(made)
        return values[-1]

    indent = "  " * depth
    lines = [
        f"{indent}of -{1 + read}, {join} -{1 + other}: {step.text}"
        for read, other, join, step in parts
    ]
    steps = [step for *_, step in parts]
    return Block(
        "\n".join(lines),
        run,
        reverse=all(s.reverse for s in steps),
        forward=all(s.forward for s in steps),
    )


JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: 0.7 * (a + b),
    "gate": lambda a, b: a * jax.nn.sigmoid(b),
    "larger": lambda a, b: jnp.maximum(a, 0.5 * b),
    "none": lambda a, _: a,
}
"""What a step does with a second value."""


def _part(rng: Random, depth: int) -> tuple[int, int, str, Block]:
    read, other = rng.choice([0, 0, 0, 1]), rng.choice([0, 1, 2])
    join = rng.choice(["none", "none", *sorted(JOINS)])
    if depth < DEPTH and rng.random() < NESTING:
        name = rng.choice(sorted(NESTED))
        inner = block(rng, depth + 1)
        made = NESTED[name](rng, inner)
        text = f"{name} {made.text}".rstrip() + "\n" + inner.text
        reverse, forward = (
            made.reverse and inner.reverse,
            made.forward and inner.forward,
        )
        return read, other, join, Block(text, made.run, reverse, forward)
    name = rng.choice(sorted(PLAIN))
    return read, other, join, Block(name, PLAIN[name])


def _scan(rng: Random, inner: Block) -> Block:
    length, unroll, reverse = rng.choice([2, 3]), rng.choice([1, 2]), rng.random() < 0.3

    def run(held: Held, x: Any) -> Any:
        def turn(carry: Any, w: Any) -> tuple[Any, Any]:
            made = inner.run({**held, "w": w}, carry)
            return made, made.mean()

        weights = held["stack"][:length]
        last, means = lax.scan(turn, x, weights, reverse=reverse, unroll=unroll)
        return last + means.sum() * 0.1

    return Block(f"{length} {unroll} {reverse}", run)


def _while(rng: Random, inner: Block) -> Block:
    turns = rng.choice([1, 2, 3])

    def run(held: Held, x: Any) -> Any:
        def go(state: Any) -> Any:
            return state[0] + 1, inner.run(held, state[1])

        return lax.while_loop(lambda s: s[0] < turns, go, (jnp.int32(0), x))[1]

    return Block(f"{turns}", run, reverse=False)


def _fori(_: Random, inner: Block) -> Block:
    def run(held: Held, x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, v: inner.run(held, v) + i * 0.1, x)

    return Block("", run)


def _cond(_: Random, inner: Block) -> Block:
    def run(held: Held, x: Any) -> Any:
        return lax.cond(
            held["n"] % 2 == 0, lambda v: inner.run(held, v), lambda v: v * 0.5, x
        )

    return Block("", run)


def _switch(_: Random, inner: Block) -> Block:
    def run(held: Held, x: Any) -> Any:
        branches = [lambda v: v, lambda v: inner.run(held, v), jnp.tanh]
        return lax.switch(held["n"] % 3, branches, x)

    return Block("", run)


def _remat(rng: Random, inner: Block) -> Block:
    name = rng.choice(sorted(POLICIES))
    cse = rng.random() < 0.5

    def run(held: Held, x: Any) -> Any:
        kept = jax.checkpoint(inner.run, policy=POLICIES[name], prevent_cse=cse)
        return kept(held, x)

    return Block(name, run)


def _jit(_: Random, inner: Block) -> Block:
    return Block("", jax.jit(inner.run))


def _vmap(rng: Random, inner: Block) -> Block:
    stacked = rng.random() < 0.5

    def run(held: Held, x: Any) -> Any:
        pair = jnp.stack([x, x[::-1] * 0.5])
        if not stacked:
            return jax.vmap(lambda v: inner.run(held, v))(pair).mean(0)
        w = held["stack"][:2]
        batched = jax.vmap(lambda v, w: inner.run({**held, "w": w}, v))
        return batched(pair, w).mean(0)

    return Block("stacked" if stacked else "", run)


def _grad(_: Random, inner: Block) -> Block:
    def run(held: Held, x: Any) -> Any:
        if not inner.reverse and not inner.forward:
            return inner.run(held, x)
        if not inner.reverse:
            return jax.jvp(lambda v: inner.run(held, v), (x,), (jnp.cos(x),))[1]
        found = jax.grad(lambda v: (inner.run(held, v) ** 2).mean())(x)
        return x + jnp.tanh(found)

    return Block("", run)


def _custom_vjp(rng: Random, inner: Block) -> Block:
    clips = rng.random() < 0.5

    def run(held: Held, x: Any) -> Any:
        @jax.custom_vjp
        def rule(held: Held, x: Any, w: Any) -> Any:
            return jnp.tanh(inner.run(held, x) @ w)

        def forward(held: Held, x: Any, w: Any) -> tuple[Any, Any]:
            out = rule(held, x, w)
            return out, (out, w)

        def backward(kept: Any, ct: Any) -> tuple[Any, Any, Any]:
            out, w = kept
            ct = ct * (1 - out * out)
            by_x = ct @ w.T
            return None, (jnp.clip(by_x, -1, 1) if clips else by_x), out.T @ ct

        rule.defvjp(forward, backward)
        return rule(held, x, held["w"])

    return Block("clips" if clips else "", run, forward=False)


def _custom_jvp(_: Random, inner: Block) -> Block:
    @jax.custom_jvp
    def soft(x: Any) -> Any:
        return jnp.where(x > 0, x, jnp.tanh(x))

    @soft.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        return soft(x), t * jnp.where(x > 0, 1, 0.5).astype(x.dtype)

    return Block("", lambda held, x: soft(inner.run(held, x)))


def _map(_: Random, inner: Block) -> Block:
    def run(held: Held, x: Any) -> Any:
        return lax.map(lambda v: inner.run(held, v), jnp.stack([x, -x]))[0]

    return Block("", run)


NESTED: Mapping[str, Callable[[Random, Block], Block]] = {
    "cond": _cond,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "fori": _fori,
    "grad": _grad,
    "jit": _jit,
    "map": _map,
    "remat": _remat,
    "scan": _scan,
    "switch": _switch,
    "vmap": _vmap,
    "while": _while,
}
"""Each returns a block that runs another one inside a construct."""
