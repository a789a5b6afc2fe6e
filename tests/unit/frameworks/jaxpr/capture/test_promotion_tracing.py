"""While a program is traced, the operands of each primitive are promoted."""

import warnings

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax

from amprewrite.dtypes import Processor
from amprewrite.errors import ComplexTruncationError, PromotionError
from amprewrite.frameworks.jaxpr.capture.promotion import (
    RULES,
    Promoter,
    promoting,
    tracing,
)

JAX = Processor("jax", x64=True)
LOW, FULL = jnp.ones(2, "bfloat16"), jnp.ones(2, "float32")
HALF, COMPLEX = jnp.ones(2, "float16"), jnp.ones(2, "complex64")
WHOLE = jnp.arange(2)


def made(program, *args, processor: Processor | None = JAX):
    with promoting(processor):
        return jax.make_jaxpr(program)(*args)


@pytest.mark.parametrize(
    ("program", "args", "dtype"),
    [
        (lax.add, (LOW, HALF), "float32"),
        (lax.mul, (WHOLE, LOW), "bfloat16"),
        (lax.max, (LOW, FULL), "float32"),
        (lax.complex, (LOW, FULL), "complex64"),
        (lax.dot, (LOW, HALF), "float32"),
        (lambda a, b: lax.concatenate([a, b], 0), (LOW, FULL), "float32"),
        (lambda a, b: lax.clamp(a, b, a), (LOW, FULL), "float32"),
        (lambda a, b: lax.pad(a, b[0], [(1, 1, 0)]), (LOW, FULL), "bfloat16"),
        (lambda a, n: lax.pow(a, n), (LOW, WHOLE), "bfloat16"),  # noqa: PLW0108
    ],
)
def test_operands_get_their_common_dtype(program, args, dtype):
    assert made(program, *args).out_avals[0].dtype == dtype


def test_an_integer_power_stays_one():
    (eqn,) = made(lax.pow, LOW, WHOLE).jaxpr.eqns
    assert [str(var.aval.dtype) for var in eqn.invars] == ["bfloat16", "int32"]


def test_equal_operands_are_not_touched():
    for primitive in RULES:
        assert "-" not in primitive or primitive.startswith("scatter")
    names = [eqn.primitive.name for eqn in made(lax.add, LOW, LOW).jaxpr.eqns]
    assert names == ["add"]


def test_without_a_processor_nothing_is_promoted():
    with pytest.raises(TypeError, match="same dtypes"):
        made(lax.add, LOW, FULL, processor=None)
    with tracing(None), pytest.raises(TypeError, match="same dtypes"):
        lax.add(LOW, FULL)


def test_64_bits_are_made_only_where_jax_has_them():
    unsigned = WHOLE.astype("uint32")
    assert made(lax.add, unsigned, WHOLE).out_avals[0].dtype == "int32"
    with jax.enable_x64(True):
        assert made(lax.add, unsigned, WHOLE).out_avals[0].dtype == "int64"


def test_a_torch_system_adapts_scalars():
    found = made(lax.add, LOW, FULL[0], processor=Processor("torch"))
    assert found.out_avals[0].dtype == "bfloat16"


def test_a_pair_without_a_common_dtype_is_refused():
    eighth = jnp.ones(2, "float8_e5m2")
    with pytest.raises(PromotionError, match=r"test_promotion_tracing\.py:\d+: add: "):
        made(lax.add, eighth, LOW)


def test_an_imaginary_part_is_not_written_away():
    def program(a, b):
        return lax.dynamic_update_slice(a, b, (0,))

    with pytest.raises(ComplexTruncationError, match="dynamic_update_slice"):
        made(program, FULL, COMPLEX)
    allowed = Processor("jax", truncate_complex=True)
    found = made(program, FULL, COMPLEX, processor=allowed)
    assert found.out_avals[0].dtype == "float32"


def test_what_is_kept_has_the_dtype_it_had():
    promoter = Promoter(JAX)
    kept = promoter.kept({"a": FULL, "b": WHOLE}, {"a": LOW, "b": WHOLE})
    assert (kept["a"].dtype, kept["b"].dtype) == ("bfloat16", "int32")
    assert promoter.kept(FULL, WHOLE).dtype == "float32"  # no float becomes whole
    assert promoter.kept((LOW,), [LOW]) == (LOW,)  # JAX refuses another structure
    number = jnp.asarray(1.0)
    assert number.weak_type
    assert promoter.kept(LOW[0], number).dtype == "bfloat16"
    assert promoter.kept(LOW[0], number, "state").dtype == "float32"
    with pytest.raises(ComplexTruncationError, match="complex64 for a state"):
        promoter.kept(COMPLEX, FULL, "state")


def test_branches_without_a_common_shape_are_left_to_jax():
    def program(x):
        return lax.cond(x[0] > 0, lambda x: x, lambda x: x[:1].astype("float32"), x)

    with pytest.raises(TypeError, match="cond"):
        made(program, LOW)


def test_branches_may_be_given_by_name():
    def program(x):
        return lax.cond(
            x[0] > 0, true_fun=lambda x: x, false_fun=lambda x: x * FULL, operand=x
        )

    with pytest.raises(TypeError):
        jax.make_jaxpr(program)(LOW)
    assert made(program, LOW).out_avals[0].dtype == "float32"


def test_jax_does_not_warn_of_what_is_cast_by_rule():
    def program(x):
        return x.at[0].set(FULL[0])

    with pytest.warns(FutureWarning, match="scatter"):
        jax.make_jaxpr(program)(LOW)
    with tracing(JAX), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert jax.make_jaxpr(program)(LOW).out_avals[0].dtype == "bfloat16"
