"""Train a neural ODE of diffrax whose vector field is converted."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import amprewrite

TIMES = jnp.linspace(0.0, 1.0, 8)
STEPS = 20


def solve(field: eqx.nn.MLP, start: jax.Array) -> jax.Array:
    """Return the solutions from each start, f32[n, 2], at all times: f32[n, 8, 2]."""

    def row(y0: jax.Array) -> jax.Array:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda _, y, field: field(y)),
            diffrax.Tsit5(),
            t0=TIMES[0],
            t1=TIMES[-1],
            dt0=0.1,
            y0=y0,
            args=field,
            saveat=diffrax.SaveAt(ts=TIMES),
            max_steps=32,
        )
        assert found.ys is not None
        return found.ys

    return jax.vmap(row)(start)


def main() -> None:
    """Fit a rotation, and compare the solutions with those of the plain field."""
    start = jax.random.normal(jax.random.key(0), (32, 2))
    turns = jnp.stack([jnp.cos(TIMES), -jnp.sin(TIMES), jnp.sin(TIMES), jnp.cos(TIMES)])
    data = jnp.einsum("tij,nj->nti", turns.T.reshape(-1, 2, 2), start)
    plain = eqx.nn.MLP(2, 2, 32, 2, activation=jnp.tanh, key=jax.random.key(1))
    field = amprewrite.convert(plain)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(field, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(field, state):  # noqa: ANN001, ANN202  # pytrees
        def loss(field):  # noqa: ANN001, ANN202
            return jnp.mean((solve(field, start) - data) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(field)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(field, updates), state, value

    losses = []
    for _ in range(STEPS):
        field, state, value = step(field, state)
        losses.append(float(value))
    low = solve(field, start)
    full = solve(amprewrite.original(field), start)

    print(field.plan.summary())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"{low.dtype}, differs from float32 by {jnp.abs(low - full).max():.4f}")


if __name__ == "__main__":
    main()
