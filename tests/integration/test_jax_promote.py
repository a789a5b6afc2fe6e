"""The policy ``promote`` in JAX minds complex numbers."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import amprewrite
from amprewrite.errors import ComplexTruncationError, PromotionError

Z = jnp.ones((2, 4)) + 1j
X = jnp.ones((2, 4))


def test_a_program_of_mixed_dtypes_is_what_it_was():
    def program(x, w, n):
        return (x @ w) * n + w.astype(jnp.float16)[0, 0]

    args = (X.astype(jnp.bfloat16), jnp.ones((4, 4)), jnp.int32(3))
    converted = amprewrite.convert(program, "promote", args=args)
    found, expected = converted(*args), program(*args)
    assert found.dtype == expected.dtype == jnp.float32
    assert (found == expected).all()
    whys = [(cast.value, cast.to_dtype, cast.why) for cast in converted.plan.casts]
    assert whys == [("x", "float32", "bfloat16 and float32 promote to float32")]


@pytest.mark.parametrize(
    "ordering",
    [
        jax.nn.softmax,
        jax.nn.log_softmax,
        lambda z: jnp.max(z, 1),
    ],
)
def test_what_orders_complex_numbers_is_refused(ordering):
    with pytest.raises(
        PromotionError, match="found an operand of complex64; want real"
    ):
        amprewrite.convert(ordering, "promote", args=(Z,))


def test_attention_of_complex_numbers_is_refused():
    heads = Z[None, :, None]
    with pytest.raises((PromotionError, ComplexTruncationError), match="complex"):
        amprewrite.convert(
            jax.nn.dot_product_attention, "promote", args=(heads, heads, heads)
        )


@pytest.mark.parametrize(
    "truncating",
    [
        lambda z: z.astype(jnp.float32) + 1,
        jax.jit(lambda z: jnp.asarray(z, jnp.float32)),
        lambda z: jax.lax.convert_element_type(z, jnp.float32),
    ],
)
def test_an_imaginary_part_is_not_dropped(truncating):
    with pytest.raises(
        ComplexTruncationError, match=r"test_jax_promote\.py:\d+: cast: found"
    ):
        amprewrite.convert(truncating, "promote", args=(Z,))


@pytest.mark.filterwarnings("ignore:Casting")
def test_an_imaginary_part_is_dropped_where_the_policy_allows_it(tmp_path):
    file = tmp_path / "truncating.toml"
    file.write_text('extends = "promote"\n[promotion]\ntruncate_complex = true\n')
    converted = amprewrite.convert(lambda z: z.astype(jnp.float32), file, args=(Z,))
    assert (converted(Z) == X).all()


def test_a_part_that_is_asked_for_is_no_truncation():
    for part in (jnp.real, jnp.imag, jnp.abs, jnp.angle):
        converted = amprewrite.convert(part, "promote", args=(Z,))
        assert (converted(Z) == part(Z)).all()
    derived = jax.grad(lambda x: jnp.abs(jnp.fft.fft(x)).sum())
    converted = amprewrite.convert(derived, "promote", args=(X,))
    assert converted(X).dtype == jnp.float32


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
def test_the_policy_off_leaves_complex_numbers_to_jax():
    converted = amprewrite.convert(jax.nn.softmax, "off", args=(Z,))
    assert converted(Z).dtype == jnp.complex64


@pytest.mark.parametrize(
    ("function", "dtypes", "made"),
    [
        (jax.lax.igamma, ("float32", "float16"), "float32"),
        (jax.lax.betainc, ("bfloat16", "float16", "float16"), "float32"),
        (jax.lax.shift_left, ("int8", "int32"), "int32"),
        (jax.lax.zeta, ("float16", "bfloat16"), "float32"),
    ],
)
def test_functions_below_numpy_take_mixed_operands(function, dtypes, made):
    args = tuple(jnp.full((3,), 2, dtype) for dtype in dtypes)
    converted = amprewrite.convert(function, "promote", args=args)
    alike = [arg.astype(made) for arg in args]
    assert converted(*args).dtype == made
    assert jnp.array_equal(converted(*args), function(*alike), equal_nan=True)
    assert {cast.to_dtype for cast in converted.plan.casts} == {made}
