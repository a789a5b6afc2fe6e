"""Parameters of equations, by what they must mean here."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from amprewrite.frameworks.jaxpr.compat import equations

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_an_equation_binds_again():
    eqn = first(jnp.sum)
    assert eqn.primitive.bind(X, **equations.bind_params(eqn)) == 4.0


def test_a_jit_only_calls_unless_it_fixes_something():
    assert equations.is_plain_jit(first(jax.jit(jnp.sin)))
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    placed = first(jax.jit(jnp.sin, out_shardings=sharding))
    assert not equations.is_plain_jit(placed)
    left = placed.params["out_shardings"][0]
    assert equations.sharding_argument(left) == sharding
    assert equations.sharding_argument(placed.params["in_shardings"][0]) is None
    donating = jax.make_jaxpr(lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 2))(X)
    assert not equations.is_plain_jit(donating.jaxpr.eqns[1])


def test_a_manual_mesh_names_its_axes():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    assert equations.manual_axes(first(mapped)) == {"d"}


def test_the_parts_of_a_scan_are_counted() -> None:
    def function(w, carry, xs):
        def turn(c, x):
            return (c[1] @ w + x, c[0]), None

        return jax.lax.scan(turn, carry, xs)[0]

    vector = jnp.ones(3)
    jaxpr = jax.make_jaxpr(function)(jnp.eye(3), (vector, vector), jnp.ones((4, 3)))
    (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert equations.scan_counts(scan) == (1, 2)


@pytest.mark.parametrize(
    ("function", "inside"),
    [(jax.checkpoint(jnp.sin), "sin"), (jax.jit(jnp.sin), "sin"), (jax.nn.relu, "max")],
    ids=["checkpoint", "jit", "custom_jvp"],
)
def test_the_only_body_is_found(function, inside) -> None:
    (eqn,) = jax.make_jaxpr(function)(X).eqns
    assert inside in str(equations.body_of(eqn))


def test_the_file_of_a_jitted_function_is_known():
    eqn = first(jax.jit(lambda y: y * 2))
    assert equations.file_of(eqn) == __file__
