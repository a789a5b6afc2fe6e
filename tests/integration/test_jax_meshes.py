"""Programs over eight devices: manual meshes, explicit axes, shardings, export."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import amprewrite
from tests.jax_programs import (
    checked_jaxpr,
    full_contractions,
    gradient_of,
    normal,
    over_all,
    relative_error,
    weight,
    wrongly_low,
)

pytestmark = [
    pytest.mark.usefixtures("strict_jax"),
    pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices"),
]

X = normal(16, 32)
W = weight(32, 32)
V = weight(32, 32, seed=2)


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("d", "m"), axis_types=(kind, kind))


def layer(w, v, x):
    return jax.nn.softmax(jnp.tanh(x @ w) @ v)


def split_layer(w, v, x):
    """Rows of ``x`` over d, columns of the hidden layer over m."""
    return jax.nn.softmax(lax.psum(jnp.tanh(x @ w) @ v, "m"))


def manual(function, *, check_vma=True):
    specs = (P(None, "m"), P("m", None), P("d", None))
    return jax.shard_map(
        function,
        mesh=mesh(),
        in_specs=specs,
        out_specs=P("d", None),
        check_vma=check_vma,
    )


def right(function, expected, *args, gradients=True):
    """Assert what a converted program keeps, on a mesh."""
    found = jax.jit(function)(*args)
    assert found.dtype == expected.dtype
    assert relative_error(found, expected) <= 2e-2
    closed = checked_jaxpr(function, *args)
    assert not full_contractions(closed)
    assert not wrongly_low(closed)
    if gradients:
        plain = jax.jit(gradient_of(over_all(layer)))((W, V, X))
        derived = gradient_of(over_all(function))
        assert relative_error(jax.jit(derived)(args), plain) <= 2e-2
        assert not full_contractions(checked_jaxpr(derived, args))


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_manual_mesh_is_converted_from_inside_and_from_outside(check_vma):
    expected = layer(W, V, X)
    inside = manual(amprewrite.convert(split_layer), check_vma=check_vma)
    outside = amprewrite.convert(manual(split_layer, check_vma=check_vma))
    right(inside, expected, W, V, X)
    right(outside, expected, W, V, X)


def test_a_gradient_averaged_over_devices_is_averaged_in_full():
    def step(w, v, x):
        grads = jax.grad(lambda w: jnp.mean(layer(w, v, x) ** 2))(w)
        return lax.pmean(grads, "d")

    mapped = jax.shard_map(
        step,
        mesh=mesh(),
        in_specs=(P(), P(), P("d", None)),
        out_specs=P(),
        check_vma=False,
    )
    expected = mapped(W, V, X)
    right(amprewrite.convert(mapped), expected, W, V, X, gradients=False)


def test_automatic_shardings_of_arguments_are_kept():
    given = mesh()
    placed = jax.device_put(
        (W, V, X),
        (
            NamedSharding(given, P(None, "m")),
            NamedSharding(given, P("m", None)),
            NamedSharding(given, P("d", None)),
        ),
    )
    right(amprewrite.convert(layer), layer(W, V, X), *placed)
    expected = jax.jit(layer)(*placed)
    found = jax.jit(amprewrite.convert(layer))(*placed)
    assert found.sharding.is_equivalent_to(expected.sharding, 2)


def test_explicit_axes_keep_their_types():
    with jax.set_mesh(mesh(AxisType.Explicit)):
        w = jax.device_put(W, P(None, "m"))
        v = jax.device_put(V, P(None, None))
        x = jax.device_put(X, P("d", None))

        def program(w, v, x):
            hidden = jnp.tanh(x @ w)
            hidden = jax.sharding.reshard(hidden, P("d", None))
            return jax.nn.softmax(hidden @ v)

        expected = program(w, v, x)
        converted = amprewrite.convert(program)
        found = converted(w, v, x)
        assert jax.typeof(found) == jax.typeof(expected)
        assert relative_error(found, expected) <= 2e-2
        right(converted, expected, w, v, x)


def test_explicit_axes_keep_their_types_in_attention():
    with jax.set_mesh(mesh(AxisType.Explicit)):
        q = jax.device_put(normal(8, 4, 2, 16), P("d", None, "m", None))

        def attend(q):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, q)
            return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), q)

        converted = amprewrite.convert(attend)
        closed = checked_jaxpr(converted, q)
        assert not full_contractions(closed)
        plain = jax.make_jaxpr(attend)(q)
        assert [str(a) for a in closed.out_avals] == [str(a) for a in plain.out_avals]
        gradient = jax.make_jaxpr(gradient_of(converted))(q)
        assert not full_contractions(gradient)


def test_a_jit_with_shardings_keeps_them():
    given = mesh()
    rows = NamedSharding(given, P("d", None))

    def program(w, v, x):
        hidden = jax.jit(
            lambda w, x: jnp.tanh(x @ w), in_shardings=(None, rows), out_shardings=rows
        )(w, x)
        return jax.nn.softmax(lax.with_sharding_constraint(hidden, rows) @ v)

    converted = amprewrite.convert(program)
    right(converted, layer(W, V, X), W, V, X)
    closed = jax.make_jaxpr(converted)(W, V, X)
    jits = (e for e in closed.jaxpr.eqns if e.primitive.name in ("jit", "pjit"))
    (inner,) = (e for e in jits if e.params["name"] != "contraction")
    assert inner.params["out_shardings"] == (rows,)
    assert rows in inner.params["in_shardings"]


def test_an_export_with_a_symbolic_batch_runs_again():
    (batch,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, 32), jnp.float32)
    converted = jax.jit(lambda x: amprewrite.convert(layer)(W, V, x))
    exported = export.export(converted)(shape)
    assert "bf16" in exported.mlir_module()
    for rows in (3, 16):
        x = normal(rows, 32)
        assert relative_error(exported.call(x), layer(W, V, x)) <= 2e-2
    gradient = jax.grad(lambda x: (exported.call(x) ** 2).sum())(X)
    expected = jax.grad(lambda x: (layer(W, V, x) ** 2).sum())(X)
    assert relative_error(gradient, expected) <= 5e-2


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_an_export_for_another_platform(platform):
    converted = jax.jit(amprewrite.convert(layer))
    exported = export.export(converted, platforms=[platform])(W, V, X)
    assert "bf16" in exported.mlir_module()


def test_each_platform_has_its_own_branch():
    def program(w, x):
        h = lax.platform_dependent(
            x @ w, cpu=lambda h: jnp.tanh(h) @ w, default=lambda h: h @ w
        )
        return h @ w

    converted = amprewrite.convert(program)
    found = jax.jit(converted)(W, X)
    assert relative_error(found, program(W, X)) <= 2e-2
    gradient = jax.jit(gradient_of(over_all(converted)))((W, X))
    expected = jax.jit(gradient_of(over_all(program)))((W, X))
    assert relative_error(gradient, expected) <= 2e-2
    checked_jaxpr(converted, W, X)


def test_pmap():
    x = X.reshape(8, 2, 32)
    expected = layer(W, V, x)
    found = jax.pmap(amprewrite.convert(layer), in_axes=(None, None, 0))(W, V, x)
    assert relative_error(found, expected) <= 2e-2
    outside = amprewrite.convert(jax.pmap(layer, in_axes=(None, None, 0)))
    assert relative_error(outside(W, V, x), expected) <= 2e-2


@pytest.mark.slow
def test_a_tolerance_on_a_manual_mesh():
    def program(w, v, x):
        def body(w, v, x):
            return lax.psum(jnp.tanh(x @ w) @ v, "m")

        specs = P(None, "m"), P("m", None), P("d", None)
        mapped = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P("d"))
        return mapped(w, v, x)

    w, v, x = weight(256, 256), weight(256, 256, seed=2), normal(256, 256)
    converted = amprewrite.convert(
        program, args=(w, v, x), placement="optimal", tolerance=2e-2
    )
    assert len(converted.plan.lowered) >= 2
    error = relative_error(converted(w, v, x), program(w, v, x))
    assert error / 1.5 < converted.plan.predicted_error < error * 1.5
