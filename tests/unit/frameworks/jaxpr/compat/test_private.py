"""Each name of JAX that changes between versions, by what it must do here."""

from contextlib import nullcontext

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from amprewrite.frameworks.jaxpr.compat import private

X = jnp.ones(4)


def first(function, *args):
    return jax.make_jaxpr(function)(*args or (X,)).jaxpr.eqns[0]


def test_tracers_and_literals_are_told_apart():
    seen = []
    jax.make_jaxpr(lambda x: seen.append(private.is_tracer(x)))(X)
    assert seen == [True]
    assert not private.is_tracer(X)
    eqn = first(lambda x: x * 2.0)
    assert [private.is_literal(atom) for atom in eqn.invars] == [False, True]


def test_an_equation_binds_again():
    eqn = first(jnp.sum)
    assert eqn.primitive.bind(X, **private.bind_params(eqn)) == 4.0


def test_the_parts_of_a_custom_rule_are_found_and_wrapped():
    function = jax.custom_jvp(lambda x: x * 2.0)
    function.defjvp(lambda p, t: (function(*p), t[0] * 3.0))
    eqn = first(function)
    value, rule = private.bind_params(eqn)["subfuns"]
    assert list(value.call_wrapped(X)) == [pytest.approx(2.0 * X)]
    assert len(rule.call_wrapped(X, X)) == 2
    params = private.bind_params(eqn)
    params["subfuns"] = (private.wrapped(lambda x: [x * 5.0], value), rule)
    (made,) = eqn.primitive.bind(X, **params)
    assert (made == 5.0).all()


def test_equations_keep_their_scopes_and_contexts():
    def program(x):
        with jax.named_scope("outer"):
            return jnp.sin(x)

    eqn = first(program)
    stack = eqn.source_info.name_stack
    assert private.scopes(stack) == ("outer",)

    def again(x):
        with jax.named_scope("around"), private.place_of(eqn, stack), eqn.ctx.manager:
            return jnp.cos(x)

    found = first(again)
    assert private.scopes(found.source_info.name_stack) == ("around", "outer")
    assert private.source_line(found.source_info.traceback) == private.source_line(
        eqn.source_info.traceback
    )


def test_a_line_is_the_users_own():
    line = private.source_line(first(lambda x: x + 1).source_info.traceback)
    assert line.startswith("test_private.py:")
    assert private.source_line(None) == ""


def test_a_jit_only_calls_unless_it_fixes_something():
    assert private.is_plain_jit(first(jax.jit(jnp.sin)))
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    placed = first(jax.jit(jnp.sin, out_shardings=sharding))
    assert not private.is_plain_jit(placed)
    left = placed.params["out_shardings"][0]
    assert private.sharding_argument(left) == sharding
    assert private.sharding_argument(placed.params["in_shardings"][0]) is None
    donating = jax.make_jaxpr(lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 2))(X)
    assert not private.is_plain_jit(donating.jaxpr.eqns[1])


def test_a_manual_mesh_names_its_axes():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    assert private.manual_axes(first(mapped)) == {"d"}


def test_the_parts_of_a_scan_are_counted() -> None:
    def function(w, carry, xs):
        def turn(c, x):
            return (c[1] @ w + x, c[0]), None

        return jax.lax.scan(turn, carry, xs)[0]

    vector = jnp.ones(3)
    jaxpr = jax.make_jaxpr(function)(jnp.eye(3), (vector, vector), jnp.ones((4, 3)))
    (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert private.scan_counts(scan) == (1, 2)


@pytest.mark.parametrize(
    ("function", "inside"),
    [(jax.checkpoint(jnp.sin), "sin"), (jax.jit(jnp.sin), "sin"), (jax.nn.relu, "max")],
    ids=["checkpoint", "jit", "custom_jvp"],
)
def test_the_only_body_is_found(function, inside) -> None:
    (eqn,) = jax.make_jaxpr(function)(X).eqns
    assert inside in str(private.body_of(eqn))


def test_casts_that_the_user_wrote_are_told_from_promotions():
    half = X.astype(jnp.bfloat16)
    written = first(lambda x: x.astype(jnp.float32), half)
    assert private.is_written_cast(written.source_info.traceback)
    summed = first(lambda x: jnp.sum(x, dtype=jnp.float32), half)
    inner = jax.make_jaxpr(lambda x: jnp.sum(x, dtype=jnp.float32))(half)
    assert not private.is_written_cast(summed.source_info.traceback)
    assert not private.is_written_cast(inner.jaxpr.eqns[0].source_info.traceback)
    assert not private.is_written_cast(None)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.astype(jnp.float32) + jnp.asarray(x, jnp.float32), 2),
        (lambda x: jnp.sum(x, dtype=jnp.float32) + jax.nn.softmax(x), 0),
        (lambda x: x.astype(jnp.bfloat16), 0),
        (lambda x: x.astype(x.dtype), 1),
    ],
)
def test_casts_of_float32_to_itself_are_noted(function, count):
    seen = []
    with private.noting_casts(lambda: seen.append(1)):
        eqns = jax.make_jaxpr(function)(X).jaxpr.eqns
    assert len(seen) == count
    with private.noting_casts(lambda: seen.append(1)):
        jnp.asarray(X, jnp.float32)  # is no part of a program
    assert len(seen) == count
    assert eqns == [] or eqns[0].primitive.name


def test_the_file_of_a_jitted_function_is_known():
    eqn = first(jax.jit(lambda y: y * 2))
    assert private.file_of(eqn) == __file__


def test_transformations_of_an_equation_are_named():
    def derived(x):
        return jax.grad(lambda x: jnp.sin(x).sum())(x)

    eqns = jax.make_jaxpr(derived)(X).jaxpr.eqns
    found = [private.transformations(eqn.source_info.name_stack) for eqn in eqns]
    assert frozenset(("jvp",)) in found
    assert any("transpose" in names for names in found)
    plain = first(jnp.sin).source_info.name_stack
    assert private.transformations(plain) == frozenset()


def test_an_equation_of_ravel_pytree_is_told_from_a_users_file_of_that_name(tmp_path):
    _, unravel = ravel_pytree([X, X])
    splits = jax.make_jaxpr(unravel)(jnp.ones(8)).jaxpr.eqns
    assert any(private.is_unravelled(eqn.source_info.traceback) for eqn in splits)
    scope = {}
    text = "def f(x): return x[:2]"
    exec(compile(text, str(tmp_path / "flatten_util.py"), "exec"), scope)
    assert not private.is_unravelled(first(scope["f"]).source_info.traceback)


def test_the_line_that_is_traced_is_the_users():
    seen = []
    jax.make_jaxpr(lambda _: seen.append(private.current_line()))(X)
    (line,) = seen
    assert line.startswith("test_private.py:")


def test_a_directory_of_the_user_may_be_called_jax(tmp_path):
    file = tmp_path / "site-packages" / "amprewrite" / "jax" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f(x):\n    return x.astype('float32')\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert private.is_written_cast(eqn.source_info.traceback)
    assert str(file) in private.files_of(eqn.source_info.traceback)
    assert private.source_line(eqn.source_info.traceback) == "model.py:2"
    assert private.files_of(None) == frozenset()
    scope = {}
    exec("def f(x): return x.astype('float32')", scope)  # as in a shell
    eqn = first(scope["f"], X.astype(jnp.bfloat16))
    assert private.is_written_cast(eqn.source_info.traceback)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
def test_a_number_may_differ_over_the_axes_that_a_value_does():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = []

    def body(x):
        same = jnp.zeros(())
        seen.extend((jax.typeof(same), jax.typeof(private.varying_as(same, x))))
        return x * private.varying_as(same, x)

    spec = jax.sharding.PartitionSpec("d")
    jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones(8))
    assert "d" not in str(seen[0])
    assert "V:d" in str(seen[1])
    plain = jnp.zeros(())
    assert private.varying_as(plain, X) is plain


def test_what_is_computed_while_tracing_is_computed_at_once():
    seen = []

    def traced(x):
        seen.append(private.is_tracer(jax.numpy.ones(()) + 1))
        with private.evaluated_now():
            seen.append(private.is_tracer(jax.numpy.ones(()) + 1))
        return x

    jax.make_jaxpr(traced)(1.0)
    assert seen == [True, False]
    # JAX's own context forgets the axes of a manual mesh.
    assert isinstance(private.evaluated_now(), nullcontext)
