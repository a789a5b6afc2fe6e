"""Contractions: accumulators handed back, derivatives low, gradients not rounded."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax import export, lax

from amprewrite.frameworks.jaxpr.interpret.contractions import (
    Contraction,
    binder,
    contract,
)
from tests.jax_contractions import dot, operand, plain
from tests.jax_programs import (
    checked_jaxpr,
    equations,
    full_contractions,
    normal,
    operand_dtypes,
    relative_error,
    weight,
)

LOW, FULL = "bfloat16", "float32"
DTYPES = (LOW, FULL)


def low_dot(bind, made=FULL, sums=LOW):
    """A contraction of low operands."""
    return Contraction(bind, LOW, FULL, made, LOW, sums)


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("emits", [True, False])
def test_every_contraction_of_the_derivatives_is_low(wanted, emits):
    of = low_dot(dot("mk", "kn"), FULL if emits else wanted)

    def run(x, y):
        return contract(of, (x, y), wanted).astype(jnp.float32)

    x, y = operand("mk"), operand("kn", 1)

    def loss(x, y):
        return (run(x, y) ** 2).sum()

    rows = jnp.stack([y, y])
    for derived, given, count in (
        (run, y, 1),
        (jax.grad(loss, (0, 1)), y, 3),
        (lambda x, y: jax.jvp(run, (x, y), (x, y)), y, 3),
        (jax.vmap(jax.grad(loss), (None, 0)), rows, 2),
        (jax.grad(jax.checkpoint(loss), (0, 1)), y, 3),
        (jax.hessian(loss), y, 4),
    ):
        closed = checked_jaxpr(derived, x, given)
        names = ("dot_general", "low_tangent")
        dots = [e for e in equations(closed) if e.primitive.name in names]
        assert len(dots) >= count
        assert not full_contractions(closed)


def test_an_accumulator_is_rounded_once():
    x, y = operand("mk"), operand("kn", 1)
    exact = plain("mk", "kn", x, y)
    whole = contract(low_dot(dot("mk", "kn")), (x, y), FULL)
    rounded = contract(low_dot(dot("mk", "kn")), (x, y), LOW)
    assert relative_error(whole, exact) < 1e-6
    assert 1e-4 < relative_error(rounded, exact) < 4e-3
    assert (rounded == whole.astype(jnp.bfloat16)).all()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("wanted", DTYPES)
def test_a_linear_program_is_transposed(side, wanted):
    x, y = operand("mk"), operand("kn", 1)
    ct = normal(4, 16, seed=2).astype(wanted)

    def run(of_side):
        pair = (of_side, y) if side == 0 else (x, of_side)
        return contract(low_dot(dot("mk", "kn")), pair, wanted)

    def transposed(ct):
        return jax.linear_transpose(run, (x, y)[side])(ct)[0]

    wide = [np.asarray(a.astype(LOW), np.float64) for a in (ct, x, y)]
    expected = wide[0] @ wide[2].T if side == 0 else wide[1].T @ wide[0]
    found = transposed(ct)
    assert found.dtype == LOW
    assert relative_error(found, expected) < 4e-3
    assert not full_contractions(checked_jaxpr(transposed, ct))


def test_convolutions_differentiate_low():
    image = normal(1, 2, 6).astype(jnp.bfloat16)
    kernel = normal(3, 2, 3, seed=1).astype(jnp.bfloat16)

    def plain_conv(x, k):
        return lax.conv_general_dilated(x, k, (1,), "SAME")

    (eqn,) = jax.make_jaxpr(plain_conv)(image, kernel).jaxpr.eqns
    bind = binder(eqn.primitive, eqn.params)

    def loss(x, k):
        return (contract(low_dot(bind), (x, k), FULL) ** 2).sum()

    closed = checked_jaxpr(jax.grad(loss, (0, 1)), image, kernel)
    convs = [e for e in equations(closed) if "conv_general" in e.primitive.name]
    assert len(convs) == 3
    assert all(set(operand_dtypes(e)) == {"bfloat16"} for e in convs)
    found = jax.jit(jax.grad(loss, (0, 1)))(image, kernel)
    assert all(jnp.isfinite(leaf.astype(jnp.float32)).all() for leaf in found)


def test_an_outer_product_is_full_and_its_derivatives_are_low():
    bind = binder(
        lax.dot_general_p,
        {
            "dimension_numbers": (((), ()), ((), ())),
            "precision": None,
            "preferred_element_type": None,
            "out_sharding": None,
        },
    )
    x, y = normal(4), normal(5, seed=1)

    def product(x, y):
        of = Contraction(bind, LOW, FULL, made=FULL, reads=FULL, sums=LOW)
        return contract(of, (x, y), FULL)

    assert (product(x, y) == jnp.outer(x, y)).all()

    def loss(x, y):
        return (product(x, y) * jnp.arange(20.0).reshape(4, 5)).sum()

    derived = jax.grad(loss, (0, 1))
    dots = [
        set(operand_dtypes(eqn))
        for eqn in equations(checked_jaxpr(derived, x, y))
        if eqn.primitive.name == "dot_general"
    ]
    assert dots == [{"float32"}, {"bfloat16"}, {"bfloat16"}]
    assert (
        relative_error(
            derived(x, y),
            jax.grad(
                lambda x, y: (jnp.outer(x, y) * jnp.arange(20.0).reshape(4, 5)).sum(),
                (0, 1),
            )(x, y),
        )
        < 1e-2
    )


W = binder(
    lax.dot_general_p,
    {
        "dimension_numbers": (((1,), (0,)), ((), ())),
        "precision": None,
        "preferred_element_type": None,
        "out_sharding": None,
    },
)


def held(x, w, sums=FULL):
    """Contract low ``x`` with a weight that is held full."""
    return contract(low_dot(W, sums=sums), (x.astype(jnp.bfloat16), w), FULL)


def test_the_gradient_of_a_held_weight_is_not_rounded():
    """Only the operands of its contraction are."""
    x, w, turn = normal(64, 8), normal(8, 16, seed=1), normal(64, 16, seed=2)

    def low(values):
        return np.asarray(values.astype(jnp.bfloat16), np.float64)

    def loss(x, w):
        return (held(x, w) * turn).sum()

    by_x, by_w = jax.jit(jax.grad(loss, (0, 1)))(x, w)
    assert relative_error(by_w, low(x).T @ low(turn)) < 1e-6
    assert 1e-4 < relative_error(by_x, low(turn) @ low(w).T) < 4e-3


@pytest.mark.parametrize(
    ("sums", "made"),
    [(LOW, [LOW, LOW]), (FULL, [FULL, FULL]), ("operand", [FULL, LOW])],
)
def test_cotangents_are_added_up_as_it_is_said(sums, made):
    """The gradient of the weight, which is held full, is made before that of ``x``."""

    def loss(x, w):
        return (held(x, w, sums) ** 2).sum()

    closed = checked_jaxpr(jax.grad(loss, (0, 1)), normal(4, 8), normal(8, 16, seed=1))
    dots = [e for e in equations(closed) if e.primitive.name == "dot_general"]
    assert all(set(operand_dtypes(e)) == {LOW} for e in dots)
    assert [str(e.outvars[0].aval.dtype) for e in dots] == [FULL, *made]


def mapped(fun):
    mesh = jax.make_mesh((1,), ("d",), (jax.sharding.AxisType.Auto,))
    specs = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()
    return jax.shard_map(
        lambda x, w: lax.psum(fun(x, lax.pcast(w, "d", to="varying")), "d"),
        mesh=mesh,
        in_specs=specs,
        out_specs=specs[1],
    )


def scanned(fun):
    return lambda x, w: lax.scan(
        lambda total, x: (total + fun(x, w), None), 0.0, x[None]
    )[0]


OF_LOSSES = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": scanned,
    "shard_map": mapped,
    "vmap": lambda fun: lambda x, w: jax.vmap(fun, (0, None))(x[:, None], w).sum(),
    "vmap of weights": lambda fun: (
        lambda x, w: jax.vmap(fun, (None, -1))(x, jnp.stack([w, w], -1)).mean()
    ),
    "checkpointed scan": lambda fun: scanned(jax.checkpoint(fun)),
}


def loss(x, w):
    return (jnp.tanh(held(x, w)) ** 2).sum()


@pytest.mark.parametrize("name", OF_LOSSES)
def test_gradients_compose(name):
    x, w = normal(4, 8), weight(8, 6)
    gradient = jax.grad(OF_LOSSES[name](loss), (0, 1))
    wanted = jax.grad(lambda x, w: (jnp.tanh(x @ w) ** 2).sum(), (0, 1))(x, w)
    assert relative_error(jax.jit(gradient)(x, w), wanted) < 1e-2
    assert not full_contractions(checked_jaxpr(gradient, x, w))
    again = export.export(jax.jit(gradient))(x, w).call
    assert relative_error(again(x, w), wanted) < 1e-2


def test_tangents_and_curvatures_are_those_of_the_program():
    def plain_loss(x, w):
        return (jnp.tanh(x @ w) ** 2).sum()

    x, w = normal(2, 4), weight(4, 3)
    for derive in (
        lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w))[1],
        lambda f: jax.hessian(f, 1),
        lambda f: jax.jacrev(jax.grad(f, 1), 1),
        lambda f: (
            lambda x, w: jax.vmap(jax.linearize(f, x, w)[1], (0, None))(
                jnp.stack([x, -x]), w
            )
        ),
    ):
        found = jax.jit(derive(loss))(x, w)
        assert relative_error(found, jax.jit(derive(plain_loss))(x, w)) < 2e-2


def test_a_loop_without_end_has_tangents():
    def power(x, w):
        return lax.fori_loop(
            0, jnp.asarray(3), lambda _, x: jnp.tanh(held(x, w)), x
        ).sum()

    x, w = normal(2, 4), weight(4, 4)
    found = jax.jit(lambda x, w: jax.jvp(power, (x, w), (x, w))[1])(x, w)

    def wide(x, w):
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return x.sum()

    assert relative_error(found, jax.jvp(wide, (x, w), (x, w))[1]) < 2e-2
