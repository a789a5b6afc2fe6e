"""Loops in JAX that end by a comparison of floats end as in float32."""

import pytest

import amprewrite

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

pytestmark = pytest.mark.filterwarnings(
    "ignore:rewritten 0 of", "ignore:casts to float32 that the function may write"
)

PLACEMENTS = ("promote", "paint", "optimal")
KEYS = jax.random.split(jax.random.key(0), 3)
SQUARE = jax.random.normal(KEYS[0], (24, 24))
A, B = SQUARE @ SQUARE.T / 24 + jnp.eye(24), jnp.ones(24)
W = jax.random.normal(KEYS[1], (24, 24)) / 24**0.5
X = jax.random.normal(KEYS[2], (4, 24))
MOST = 2000


def by_residual(a, b):
    """Jacobi's iteration, ended by the norm of the residual."""
    goes_on = lambda s: (jnp.linalg.norm(b - a @ s[0]) > 1e-4) & (s[1] < MOST)  # noqa: E731
    step = lambda s: (s[0] + 0.3 * (b - a @ s[0]) / jnp.diag(a), s[1] + 1)  # noqa: E731
    return lax.while_loop(goes_on, step, (b * 0, 0))


def by_difference(a, b):
    """The same, ended by the largest difference of two iterates in the carry."""

    def step(s):
        x, _, n = s
        return x + 0.2 * (b - a @ x), x, n + 1

    def goes_on(s):
        return (jnp.max(jnp.abs(s[0] - s[1])) > 1e-5) & (s[2] < MOST)

    x, _, n = lax.while_loop(goes_on, step, (b * 0, b, 0))
    return x, n


def by_flag(a, b):
    """The same, ended by a truth value that the body makes."""

    def step(s):
        x, n, _ = s
        new = x + 0.2 * (b - a @ x)
        return new, n + 1, jnp.linalg.norm(new - x) < 1e-5

    x, n, _ = lax.while_loop(
        lambda s: ~s[2] & (s[1] < MOST), step, (b * 0, 0, jnp.array(False))
    )
    return x, n


def by_code(a, b):
    """The same, ended by an integer that stands for success or failure."""

    def step(s):
        x, n, _ = s
        new = x + 0.2 * (b - a @ x)
        done = jnp.sum((new - x) ** 2) < 1e-10
        return new, n + 1, jnp.where(done, 1, jnp.where(n > MOST, 2, 0))

    return lax.while_loop(lambda s: s[2] == 0, step, (b * 0, 0, 0))[:2]


def by_gradients(a, b):
    """Conjugate gradients."""

    def step(s):
        x, r, p, n = s
        q = a @ p
        alpha = (r @ r) / (p @ q)
        new = r - alpha * q
        return x + alpha * p, new, new + (new @ new) / (r @ r) * p, n + 1

    def goes_on(s):
        return (jnp.sqrt(s[1] @ s[1]) > 1e-4) & (s[3] < MOST)

    x, _, _, n = lax.while_loop(goes_on, step, (b * 0, b, b, 0))
    return x, n


def by_eigenvalue(a, b):
    """Power iteration, ended by a relative difference of eigenvalues."""

    def step(s):
        v, old, _, n = s
        w = a @ v
        return w / jnp.linalg.norm(w), v @ w, old, n + 1

    def goes_on(s):
        return (jnp.abs(s[1] - s[2]) > 1e-5 * jnp.abs(s[1])) & (s[3] < MOST)

    v, _, _, n = lax.while_loop(goes_on, step, (b, 1.0, 0.0, 0))
    return v, n


LOOPS = (by_residual, by_difference, by_flag, by_code, by_gradients, by_eigenvalue)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("solve", LOOPS, ids=lambda f: f.__name__)
def test_a_loop_takes_as_many_turns_as_in_full_precision(solve, placement):
    wanted, turns = solve(A, B)
    found, taken = amprewrite.convert(solve, placement=placement)(A, B)
    assert abs(int(taken) - int(turns)) <= 1
    assert 5 < turns < MOST
    assert jnp.linalg.norm(found - wanted) < 1e-3 * jnp.linalg.norm(wanted)


def test_batched_loops_end_as_well():
    batch = jnp.stack([B, 2 * B, 3 * B])
    solve = jax.vmap(by_flag, (None, 0))
    assert jnp.array_equal(amprewrite.convert(solve)(A, batch)[1], solve(A, batch)[1])


def test_the_comparison_is_named():
    plan = amprewrite.inspect(by_residual, args=(A, B))
    products = [d for d in plan.decisions if d.canonical == "matmul"]
    assert [d.precision for d in products] == ["float32", "float32"]
    for decision in products:
        assert decision.why == "gt needs an exact argument: its producers stay full"
        assert decision.causes[-1] == "gt"


def adaptive(x):
    """A solver of a differential equation with steps of its own."""
    field = lambda y: jnp.tanh(y @ W) @ W  # noqa: E731

    def step(s):
        t, dt, y = s
        one = field(y)
        two = field(y + dt * one)
        error = jnp.sqrt(jnp.mean(jnp.square(dt * (two - one) / 2) / 1e-6))
        good = error < 1
        size = dt * jnp.clip(0.9 * error**-0.5, 0.2, 5.0)
        return (
            jnp.where(good, t + dt, t),
            size,
            jnp.where(good, y + dt * (one + two) / 2, y),
        )

    return lax.while_loop(lambda s: s[0] < 1, step, (0.0, 0.1, x))[2]


def rooted(x):
    """The same, with a root of the tolerance over the error."""

    def step(s):
        t, dt, y = s
        change = jnp.tanh(y @ W) @ W
        error = jnp.linalg.norm(dt * change)
        return t + dt, dt * jnp.sqrt(1e-3 / error), y + dt * change

    return lax.while_loop(lambda s: s[0] < 1e-2, step, (0.0, 1e-3, x))[2]


def decoding(x):
    """A decoder that ends at a token."""

    def step(s):
        h, n, _ = s
        h = jax.nn.relu(h @ W)
        return h, n + 1, jnp.argmax(h @ W, -1)

    start = x, 0, jnp.zeros(4, int)
    return lax.while_loop(lambda s: (s[1] < 9) & jnp.any(s[2] != 3), step, start)[0]


def equilibrium(x):
    """A network that is iterated to its fixed point."""

    def goes_on(s):
        return (jnp.linalg.norm(s[0] - s[1]) > 1e-1) & (s[2] < 50)

    def step(s):
        return jnp.tanh(s[0] @ W / 4 + x), s[0], s[2] + 1

    return lax.while_loop(goes_on, step, (x, x + 1, 0))[0]


def counted(x):
    """A network that runs for a number of turns."""
    step = lambda s: (s[0] + s[0] @ W / 9, s[1] + 1)  # noqa: E731
    return lax.while_loop(lambda s: s[1] < 5, step, (x, 0))[0]


NETWORKS = (adaptive, rooted, decoding, equilibrium, counted)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda f: f.__name__)
def test_a_network_in_a_loop_stays_low(network):
    plan = amprewrite.inspect(network, args=(X,))
    products = {d.precision for d in plan.decisions if d.canonical == "matmul"}
    assert products == {"bfloat16"}
