"""Solvers: what their backward pass computes again and derives runs by the plan."""

from functools import partial
from typing import Any

import pytest

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")
diffrax = pytest.importorskip("diffrax")
optimistix = pytest.importorskip("optimistix")

import equinox.internal as eqxi
import jax.numpy as jnp
import lineax
import optax

import amprewrite
from tests.jax_programs import (
    CONTRACTIONS,
    LOW,
    equations,
    full_contractions,
    normal,
    operand_dtypes,
    relative_error,
    weight,
)

pytestmark = pytest.mark.filterwarnings("ignore::amprewrite.errors.AmpWarning")
"""Solvers cannot be traced in low precision, and a plan may lower nothing."""

X = normal(8, 16)
WS = (weight(16, 32), weight(32, 32, seed=2), weight(32, 16, seed=3))
STEPS = 10


def field(ws, y):
    a, b, c = ws
    return jnp.tanh(jnp.tanh(y @ a) @ b) @ c


def loop(kind, ws, y):
    """Euler's method by a loop of Equinox, as its users write solvers."""

    def turn(state):
        step, y = state
        return step + 1, y + field(ws, y) / STEPS

    options: dict[str, Any] = {"checkpoints": 4} if kind == "checkpointed" else {}
    return eqxi.while_loop(
        lambda state: state[0] < STEPS,
        turn,
        (0, y),
        kind=kind,
        max_steps=STEPS,
        **options,
    )[1]


def scan(ws, y):
    def turn(y, _):
        return y + field(ws, y) / STEPS, None

    return jax.lax.scan(turn, y, None, length=STEPS)[0]


def solve(ws, y, **options):
    solver = options.pop("solver", diffrax.Euler())
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda _, y, ws: field(ws, y)),
        solver,
        t0=0.0,
        t1=1.0,
        dt0=1 / STEPS,
        y0=y,
        args=ws,
        max_steps=16,
        **options,
    ).ys[-1]


def solve_rows(ws, y):
    return jax.vmap(partial(solve, ws))(y)


def fixed_point(ws, y, **options):
    def function(z, args):
        ws, y = args
        return jnp.tanh(0.3 * field(ws, z) + y)

    solver = optimistix.FixedPointIteration(rtol=1e-2, atol=1e-2)
    found = optimistix.fixed_point(
        function, solver, y, args=(ws, y), max_steps=50, throw=False, **options
    )
    return found.value


def loss(run, ws, y):
    return jnp.mean(run(ws, y) ** 2)


SOLVERS = {
    "a checkpointed loop": partial(loop, "checkpointed"),
    "a bounded loop": partial(loop, "bounded"),
    "Euler": solve,
    "Euler of each row": solve_rows,
    "Tsit5": partial(solve, solver=diffrax.Tsit5()),
    "Tsit5, direct": partial(
        solve, solver=diffrax.Tsit5(), adjoint=diffrax.DirectAdjoint()
    ),
    "Tsit5, continuous": partial(
        solve, solver=diffrax.Tsit5(), adjoint=diffrax.BacksolveAdjoint()
    ),
    "a fixed point, unrolled": partial(
        fixed_point, adjoint=optimistix.RecursiveCheckpointAdjoint()
    ),
}
"""Their gradients have low contractions alone, but those that stay full everywhere."""

ROOTS = {
    "implicit Euler": partial(
        solve,
        solver=diffrax.ImplicitEuler(diffrax.VeryChord(rtol=1e-2, atol=1e-2)),
    ),
}
"""Solvers that search a root, whose test compares what the last layer returns."""

SOLVED = {
    "a fixed point": fixed_point,
    "a fixed point, by GMRES": partial(
        fixed_point,
        adjoint=optimistix.ImplicitAdjoint(lineax.GMRES(rtol=1e-3, atol=1e-3)),
    ),
}
"""Their gradients solve linear systems, which are left as they were traced."""


def contractions(closed):
    """How many contractions there are, and how many of them read low operands."""
    found = [e for e in equations(closed) if e.primitive.name in CONTRACTIONS]
    low = [e for e in found if set(operand_dtypes(e)) <= set(LOW)]
    return len(found), len(low)


def gradients(run):
    """The gradient of the converted loss, and the converted gradient of the loss."""
    value = partial(loss, run)
    before = jax.grad(amprewrite.convert(value))
    return {"before": before, "after": amprewrite.convert(jax.grad(value))}


@pytest.fixture(scope="module")
def error_of_scan():
    expected = jax.jit(jax.grad(partial(loss, scan)))(WS, X)
    found = jax.jit(gradients(scan)["before"])(WS, X)
    return relative_error(found, expected)


@pytest.mark.parametrize("name", ROOTS)
def test_a_search_for_a_root_has_its_last_layer_in_full(name):
    run = ROOTS[name]
    for gradient in gradients(run).values():
        closed = jax.make_jaxpr(gradient)(WS, X)
        full = set(full_contractions(closed))
        assert full == {"dot_general['float32', 'float32']"}
        assert contractions(closed)[1] > 2 * len(full_contractions(closed))
    plan = amprewrite.inspect(partial(loss, run), args=(WS, X))
    full = [d for d in plan.decisions if d.canonical == "matmul" if d.causes]
    assert full
    assert all("needs an exact argument" in decision.why for decision in full)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_backward_pass_is_low_where_the_forward_pass_is(name):
    run = SOLVERS[name]
    plain = jax.make_jaxpr(jax.grad(partial(loss, run)))(WS, X)
    for gradient in gradients(run).values():
        closed = jax.make_jaxpr(gradient)(WS, X)
        assert not full_contractions(closed)
        assert contractions(closed)[0] == contractions(plain)[0]
        assert contractions(closed)[1] >= 9


@pytest.mark.parametrize("name", ["a checkpointed loop", "a bounded loop", "Euler"])
def test_the_gradient_is_as_near_as_that_of_a_scan(name, error_of_scan):
    expected = jax.jit(jax.grad(partial(loss, SOLVERS[name])))(WS, X)
    for gradient in gradients(SOLVERS[name]).values():
        error = relative_error(jax.jit(gradient)(WS, X), expected)
        assert error < 1.05 * error_of_scan < 1e-2


@pytest.mark.parametrize("name", SOLVED)
def test_a_linear_solve_is_left_as_it_was_traced(name):
    value = partial(loss, SOLVED[name])
    expected = jax.jit(jax.grad(value))(WS, X)
    for gradient in gradients(SOLVED[name]).values():
        assert relative_error(jax.jit(gradient)(WS, X), expected) < 2e-2
    assert not full_contractions(
        jax.make_jaxpr(gradients(SOLVED[name])["after"])(WS, X)
    )
    after = amprewrite.convert(jax.grad(value), args=(WS, X)).plan
    (solve,) = (d for d in after.decisions if d.native == "linear_solve")
    assert (solve.op_class, solve.why.partition(":")[0]) == ("keep", "a linear solver")


@pytest.mark.parametrize("name", ["a checkpointed loop", "a bounded loop"])
def test_what_a_tolerance_keeps_full_stays_so_in_the_backward_pass(name):
    value = partial(loss, SOLVERS[name])
    ws = (weight(128, 512), weight(512, 512, seed=2), weight(512, 128, seed=3))
    args = (ws, normal(128, 128))
    # By these prices all that fits the tolerance is full. A plan for a compiler rounds
    # what the loss hardly depends on, which its gradient may well depend on.
    given = {"args": args, "target": "eager"}
    usual = amprewrite.inspect(value, placement="optimal", **given)
    assert len(usual.lowered) >= 3
    measured = amprewrite.convert(value, tolerance=1e-6, **given)
    applied = amprewrite.convert(value, plan=measured.plan, args=args)
    expected, wanted = jax.jit(jax.value_and_grad(value))(*args)
    for converted in (measured, applied):
        derived = jax.value_and_grad(converted)
        assert contractions(jax.make_jaxpr(derived)(*args))[1] == 0
        found, gradient = jax.jit(derived)(*args)
        assert abs(found - expected) <= 1e-6 * abs(expected)
        assert relative_error(gradient, wanted) < 1e-5


def test_a_model_that_solves_is_converted_twice_and_trains():
    model = eqx.nn.MLP(16, 16, 32, 2, activation=jnp.tanh, key=jax.random.key(0))

    def value(model, y):
        term = diffrax.ODETerm(lambda _, y, model: jax.vmap(model)(y))
        options = {"t0": 0.0, "t1": 1.0, "dt0": 1 / STEPS, "max_steps": 16}
        solved = diffrax.diffeqsolve(term, diffrax.Euler(), y0=y, args=model, **options)
        return jnp.mean((solved.ys[-1] - 1.0) ** 2)

    twice = amprewrite.convert(amprewrite.convert(value))
    optimiser = optax.adam(1e-2)

    def train(value):
        held = model
        state = optimiser.init(eqx.filter(held, eqx.is_array))
        losses = []

        @eqx.filter_jit
        def step(held, state):
            found, gradient = eqx.filter_value_and_grad(value)(held, X)
            updates, state = optimiser.update(gradient, state)
            return eqx.apply_updates(held, updates), state, found

        for _ in range(20):
            held, state, found = step(held, state)
            losses.append(float(found))
        return losses

    found, expected = train(twice), train(value)
    closed = eqx.filter_make_jaxpr(eqx.filter_grad(twice))(model, X)[0]
    assert not full_contractions(closed)
    assert found[-1] < 0.5 * found[0]
    assert abs(found[-1] - expected[-1]) < 2e-2 * expected[0]
