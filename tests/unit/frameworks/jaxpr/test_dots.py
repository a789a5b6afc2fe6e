"""Contractions: accumulators handed back, derivatives low, every layout runs."""

import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # after the skip
from jax import lax  # noqa: E402

from amprewrite.frameworks.jaxpr import calibrate  # noqa: E402
from amprewrite.frameworks.jaxpr.dots import (  # noqa: E402
    accumulated,
    binder,
    contract,
)
from tests.jax_programs import (  # noqa: E402
    checked_jaxpr,
    equations,
    full_contractions,
    normal,
    operand_dtypes,
    relative_error,
)

EXTENTS = {"b": 2, "c": 3, "m": 4, "k": 8, "n": 16}
DTYPES = ("bfloat16", "float32")


def layout(left, right):
    """Return dimension numbers for two strings of labels."""
    batch = [a for a in "bc" if a in left and a in right]
    return (
        ((left.index("k"),), (right.index("k"),)),
        (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
    )


def dot(left, right):
    return binder(
        lax.dot_general_p,
        {
            "dimension_numbers": layout(left, right),
            "precision": None,
            "preferred_element_type": None,
            "out_sharding": None,
        },
    )


def operand(labels, seed=0):
    return normal(*(EXTENTS[a] for a in labels), seed=seed).astype(jnp.bfloat16)


def plain(left, right, x, y):
    batch = [a for a in "bc" if a in left and a in right]
    free = [a for a in left + right if a not in (*batch, "k")]
    wide = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.einsum(f"{left},{right}->{''.join(batch + free)}", *wide)


CRASHING = [
    ("bckm", "cbkn", None),
    ("bckm", "kbcn", None),
    ("bkm", "kbn", None),
    ("bkm", "nkb", None),
    ("km", "kn", (None, 1)),
    ("km", "nk", (0, 2)),
    ("bkm", "bkn", (0, 3)),
    ("bkm", "nbk", (None, 0)),
    ("mk", "kn", "transposed"),
    ("bmk", "bkn", "transposed"),
]
"""Layouts that jaxlib 0.10.2 compiles into code that fails on a CPU; some by vmap."""


@pytest.mark.parametrize(("left", "right", "how"), CRASHING)
def test_layouts_that_xla_cannot_run_run(left, right, how):
    bind = dot(left, right)
    x, y = operand(left), operand(right, 1)
    expected = plain(left, right, x, y)

    def run(x, y):
        out = contract(bind, (x, y), DTYPES, "float32")
        return jnp.swapaxes(out, -1, -2) + 1.0 if how == "transposed" else out

    if how == "transposed":
        expected = np.swapaxes(expected, -1, -2) + 1.0
    if isinstance(how, tuple):
        axes = how
        run = jax.vmap(run, axes)
        x, y = (
            a if axis is None else jnp.stack([a, a], axis)
            for a, axis in zip((x, y), axes, strict=True)
        )
        expected = np.stack([expected, expected])
    found = jax.jit(run)(x, y)
    assert found.dtype == jnp.float32
    assert relative_error(found, expected) < 1e-6


@pytest.mark.slow
def test_every_layout_with_one_batch_dimension_runs():
    for left in map("".join, itertools.permutations("bmk")):
        for right in map("".join, itertools.permutations("bkn")):
            x, y = operand(left), operand(right, 1)
            found = contract(dot(left, right), (x, y), DTYPES, "float32")
            assert relative_error(found, plain(left, right, x, y)) < 1e-6


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("emits", [True, False])
def test_every_contraction_of_the_derivatives_is_low(monkeypatch, wanted, emits):
    monkeypatch.setattr(calibrate, "DEFAULTS", {"cpu": emits})
    calibrate.emits_accumulators.cache_clear()
    bind = dot("mk", "kn")

    def run(x, y):
        return contract(bind, (x, y), DTYPES, wanted).astype(jnp.float32)

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
        dots = [e for e in equations(closed) if e.primitive.name == "dot_general"]
        assert len(dots) >= count
        assert not full_contractions(closed)
    calibrate.emits_accumulators.cache_clear()


def test_an_accumulator_is_rounded_once():
    x, y = operand("mk"), operand("kn", 1)
    exact = plain("mk", "kn", x, y)
    whole = contract(dot("mk", "kn"), (x, y), DTYPES, "float32")
    rounded = contract(dot("mk", "kn"), (x, y), DTYPES, "bfloat16")
    assert relative_error(whole, exact) < 1e-6
    assert 1e-4 < relative_error(rounded, exact) < 4e-3
    assert (rounded == whole.astype(jnp.bfloat16)).all()


def test_convolutions_differentiate_low():
    image = normal(1, 2, 6).astype(jnp.bfloat16)
    kernel = normal(3, 2, 3, seed=1).astype(jnp.bfloat16)

    def plain_conv(x, k):
        return lax.conv_general_dilated(x, k, (1,), "SAME")

    (eqn,) = jax.make_jaxpr(plain_conv)(image, kernel).jaxpr.eqns
    bind = binder(eqn.primitive, eqn.params)

    def loss(x, k):
        return (contract(bind, (x, k), DTYPES, "float32") ** 2).sum()

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
        return accumulated(bind, (x, y), DTYPES, "float32")

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
