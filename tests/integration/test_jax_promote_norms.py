"""Under the policy ``promote`` a norm of complex numbers sums ``|x|**2``."""

import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

import amprewrite
from amprewrite.errors import AmpWarning
from tests.jax_programs import checked_jaxpr

pytestmark = pytest.mark.usefixtures("strict_jax")

RNG = np.random.default_rng(0)
WIDE = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
Z = jnp.asarray(WIDE, "complex64")
ONES = np.ones((3, 4), np.float32)
WHY = "the norm of complex numbers sums |x|^2, real^2 + imag^2, and not x*x"


def l2_normalize(x):
    return x * lax.rsqrt((x * x).sum(1, keepdims=True) + 1e-12)


def rms_norm(x):
    return x / jnp.sqrt(jnp.mean(x**2, 1, keepdims=True) + 1e-12)


def centred(x):
    x = x - x.mean(1, keepdims=True)
    return x / jnp.sqrt(jnp.mean(jnp.square(x), 1, keepdims=True))


def length(x):
    return np.sqrt((np.abs(x) ** 2).sum(1, keepdims=True))


def exact(norm):
    middle = WIDE.mean(1, keepdims=True) if norm is centred else 0
    scale = 1 if norm is l2_normalize else 2  # the root of four columns
    return (WIDE - middle) / length(WIDE - middle) * scale


def promoted(converted):
    return [d for d in converted.plan.decisions if d.rule == "promotion"]


@pytest.mark.parametrize("norm", [l2_normalize, rms_norm, centred, jax.jit(rms_norm)])
def test_a_norm_of_complex_numbers_is_their_length(norm):
    converted = amprewrite.convert(norm, "promote", args=(Z,))
    found = converted(Z)
    wanted = exact(norm)
    assert found.dtype == "complex64"
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert np.abs(norm(Z) - wanted).max() > 0.1  # JAX alone gives something else
    np.testing.assert_allclose(jax.jit(converted)(Z), wanted, rtol=1e-5)
    checked_jaxpr(converted, Z)
    (decision,) = promoted(converted)
    assert (decision.canonical, decision.why) == ("abs_square", WHY)
    assert converted.plan.warnings == ()


def test_a_vector_of_no_length_by_its_squares_has_one():
    found = amprewrite.convert(l2_normalize, "promote")(jnp.array([[1, 1j]]))
    np.testing.assert_allclose(found, np.array([[1, 1j]]) / np.sqrt(2), rtol=1e-6)


def test_the_gradient_is_that_of_the_length():
    def right(x):
        square = x.real**2 + x.imag**2
        return x * lax.rsqrt(square.sum(1, keepdims=True) + 1e-12)

    weights = jnp.asarray(RNG.normal(size=(3, 4)), "float32")

    def loss(norm):
        return lambda x: (norm(x).real * weights).sum()

    converted = amprewrite.convert(l2_normalize, "promote")
    found, wanted = jax.grad(loss(converted))(Z), jax.grad(loss(right))(Z)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_weight_norm_divides_complex_columns_by_their_length():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            normal = nn.initializers.normal(1.0, jnp.complex64)
            return nn.WeightNorm(nn.Dense(2, False, kernel_init=normal))(x)

    variables = Model().init(jax.random.key(0), Z)
    kernel = np.asarray(variables["params"]["Dense_0"]["kernel"], np.complex128)
    found = amprewrite.convert(Model(), "promote").apply(variables, Z)
    np.testing.assert_allclose(found, WIDE @ (kernel / length(kernel.T).T), rtol=1e-4)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * x + 1,
        lambda x: (x * x).sum(),
        lambda x: x / (x * x).sum(),
        lambda x: jnp.sqrt(x * x),
        lambda x: x / jnp.sqrt((x @ x.T).sum()),
        lambda x: x / jnp.sqrt((x * jnp.conj(x)).sum()),
        lambda x: x.real / jnp.sqrt((x.real * x.real).sum()),
    ],
)
@pytest.mark.filterwarnings("error")
def test_other_squares_are_untouched(program):
    converted = amprewrite.convert(program, "promote", args=(Z,))
    assert promoted(converted) == []
    np.testing.assert_array_equal(converted(Z), program(Z))


def shared(x):
    squares = x * x
    return x * lax.rsqrt(squares.sum()), squares


@jax.custom_jvp
def ruled(x):
    return x * lax.rsqrt((x * x).sum())


ruled.defjvp(lambda p, t: (ruled(*p), t[0]))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            lambda x: jnp.sqrt((x * x).sum()),
            "the root does not scale the squared",
        ),
        (lambda x: (x + 1) * lax.rsqrt((x * x).sum()), "the root does not scale"),
        (shared, "other ops read the squares"),
        (
            jax.grad(lambda x: l2_normalize(x).real.sum()),
            "it was differentiated before it was converted",
        ),
        (ruled, "derivative rule of its own"),
    ],
)
def test_a_root_of_squares_that_may_be_meant_is_left_alone_with_a_warning(
    program, reason
):
    converted = amprewrite.convert(program, "promote")
    with pytest.warns(AmpWarning, match=reason):
        found = converted(Z)
    assert promoted(converted) == []
    (warning,) = converted.plan.warnings
    assert "write x * jnp.conj(x)" in warning
    jax.tree.map(np.testing.assert_array_equal, found, program(Z))


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_other_policies_leave_norms_alone():
    converted = amprewrite.convert(l2_normalize, "bf16", args=(Z,))
    assert promoted(converted) == []
    np.testing.assert_array_equal(converted(Z), l2_normalize(Z))


@jax.custom_jvp
def scaled(x):
    return x * 2


scaled.defjvp(lambda p, t: (scaled(*p), t[0] * (p[0] * lax.rsqrt((p[0] ** 2).sum()))))


def test_the_derivative_rule_of_a_user_is_as_it_was_written():
    converted = amprewrite.convert(lambda x: lax.add(scaled(x), ONES), "promote")
    _, found = jax.jvp(converted, (Z,), (Z,))
    assert converted.plan.casts  # it runs by the plan
    _, wanted = jax.jvp(scaled, (Z,), (Z,))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
