"""Complex numbers in JAX: neither truncated nor put in order, whatever lowers."""

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

import amprewrite
from amprewrite.errors import ComplexTruncationError, PromotionError

POLICIES = ("bf16", "fp16", "bf16-accumulate", "promote")
Z = jnp.arange(16.0).reshape(2, 8) + 1j
X = jnp.ones((2, 8))
W = jnp.ones((8, 8))

TRUNCATING = {
    "astype": lambda z: z.astype(jnp.float32),
    "asarray": lambda z: jnp.asarray(z, jnp.float32),
    "convert": lambda z: lax.convert_element_type(z, jnp.float32),
    "bfloat16": lambda z: z.astype(jnp.bfloat16),
    "integers": lambda z: z.astype(jnp.int32),
    "a jitted function": jax.jit(lambda z: z.astype(jnp.float32)),
    "a loop": lambda z: lax.map(lambda row: row.astype(jnp.float32), z),
    "vmap": jax.vmap(lambda row: row.astype(jnp.float32)),
    "set": lambda z: X.at[0].set(z[0]),
    "add": lambda z: X.at[0].add(z[0]),
    "sum": lambda z: jnp.sum(z, 0, dtype=jnp.float32)[None],
    "cumsum": lambda z: jnp.cumsum(z, 1, dtype=jnp.float32),
    "in a gradient": lambda z: jax.grad(lambda x: (x * z.astype(jnp.float32)).sum())(X),
}

ORDERING = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "max": lambda z: jnp.max(z, 0)[None],
    "maximum": lambda z: jnp.maximum(z, z + 1),
    "sort": jnp.sort,
}


def _unravelled(z):
    flat, unravel = ravel_pytree({"a": z, "b": z.real})
    return unravel(flat * 2)["b"]


LEGAL = {
    "real": jnp.real,
    "imag": jnp.imag,
    "abs": jnp.abs,
    "angle": jnp.angle,
    "norm": lambda z: jnp.linalg.norm(z, axis=0)[None],
    "var": lambda z: jnp.var(z, 0)[None],
    "a bool": lambda z: z.astype(bool).astype(jnp.float32),
    "matmul": lambda z: jnp.abs(z @ z.T.conj() @ z),
    "fft": lambda z: jnp.fft.ifft(jnp.fft.fft(z)).real,
    "irfft": lambda z: jnp.fft.irfft(jnp.fft.rfft(z.real)),
    "a gradient": lambda z: jax.grad(lambda x: jnp.abs(jnp.fft.fft(x * z)).sum())(X),
    "a gradient in a jit": jax.jit(
        lambda z: jax.grad(lambda x: jnp.abs((x * z) @ W.astype(z.dtype)).sum())(X)
    ),
    "ravel": _unravelled,
}


def layered(function):
    """Return a program with ``function`` in it, and a contraction to lower."""
    return lambda z, w: function(z).astype(jnp.float32) @ w


@pytest.mark.filterwarnings("ignore:Casting", "ignore:scatter inputs")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", TRUNCATING)
def test_no_op_drops_an_imaginary_part(name, policy):
    with pytest.raises(ComplexTruncationError, match="cast: found a cast of complex64"):
        amprewrite.convert(layered(TRUNCATING[name]), policy, args=(Z, W))


@pytest.mark.filterwarnings("ignore:Casting")
def test_the_place_is_named():
    def encoder(z):
        with jax.named_scope("encoder"):
            return z.astype(jnp.float32)

    with pytest.raises(
        ComplexTruncationError, match=r"test_jax_complex\.py:\d+: encoder: cast: found"
    ):
        amprewrite.convert(layered(encoder), args=(Z, W))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ORDERING)
def test_no_op_puts_complex_numbers_in_order(name, policy):
    with pytest.raises(PromotionError, match="found an operand of complex64"):
        amprewrite.convert(
            layered(lambda z: ORDERING[name](z).real), policy, args=(Z, W)
        )


@pytest.mark.filterwarnings("ignore:Casting")
@pytest.mark.parametrize("policy", ["bf16", "promote"])
def test_attention_is_refused(policy):
    heads = Z[None, :, None]
    with pytest.raises((PromotionError, ComplexTruncationError), match="complex64"):
        amprewrite.convert(
            jax.nn.dot_product_attention, policy, args=(heads, heads, heads)
        )


@pytest.mark.filterwarnings("ignore:casts to float32 that the function may write")
@pytest.mark.parametrize("policy", [*POLICIES, "off"])
@pytest.mark.parametrize("name", LEGAL)
def test_what_means_something_is_converted(name, policy):
    program = layered(LEGAL[name])
    converted = amprewrite.convert(program, policy, args=(Z, W))
    found, expected = converted(Z, W), program(Z, W)
    assert found.dtype == expected.dtype
    rtol = 1e-6 if policy in ("promote", "off") else 2e-2
    assert jnp.linalg.norm(found - expected) <= rtol * jnp.linalg.norm(expected)


@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_complex_stays_complex(policy):
    def program(z, w):
        return z @ w + jnp.fft.fft(z)

    converted = amprewrite.convert(program, policy, args=(Z, W))
    found = converted(Z, W)
    assert found.dtype == "complex64"
    assert jnp.allclose(found, program(Z, W), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Casting")
def test_under_off_nothing_is_refused():
    program = layered(TRUNCATING["astype"])
    converted = amprewrite.convert(program, "off", args=(Z, W))
    assert (converted(Z, W) == program(Z, W)).all()


@pytest.mark.filterwarnings("ignore:Casting")
def test_a_policy_may_allow_truncation(tmp_path):
    file = tmp_path / "truncating.toml"
    file.write_text('extends = "bf16"\n[promotion]\ntruncate_complex = true\n')
    converted = amprewrite.convert(layered(TRUNCATING["astype"]), file, args=(Z, W))
    low = Z.real.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16)
    assert (converted(Z, W) == low.astype(jnp.float32)).all()
