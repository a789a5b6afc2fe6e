"""Under the policy ``promote`` running statistics are stored in at least float32."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import amprewrite
from amprewrite.errors import ComplexTruncationError
from amprewrite.frameworks.jaxpr.convert import converted_function_of

pytestmark = pytest.mark.usefixtures("strict_jax", "x64")

KEY = jax.random.key(0)
NARROW = ["float16", "bfloat16"]
LINEN = nn.BatchNorm(use_running_average=False, momentum=0.9)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def batches(dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(3, 2, (8, 4)), dtype) for _ in range(3)]


def variables(dtype: str, x: Any) -> Any:
    """Variables of linen, some steps on, with statistics in ``dtype``."""
    made: Any = LINEN.init(KEY, x)
    held = {k: a + 0.25 for k, a in made["batch_stats"].items()}
    return {**made, "batch_stats": {k: a.astype(dtype) for k, a in held.items()}}


def model(dtype: str) -> Any:
    """A layer of nnx whose statistics start with the same values in any dtype."""
    made = nnx.BatchNorm(4, use_running_average=False, momentum=0.9, rngs=nnx.Rngs(0))
    for held in (made.mean, made.var):
        held.set_value((held[...] + 0.25).astype(dtype))
    return made


def wide(held: Any) -> Any:
    return held.astype("float32")


def dtypes(held: Any) -> list[str]:
    return [str(leaf.dtype) for leaf in jax.tree.leaves(held)]


@pytest.mark.parametrize("stored", [*NARROW, "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_linen_stores_what_float32_statistics_become(stored, dtype):
    inputs = batches(dtype)
    held = variables(stored, inputs[0])
    wanted = variables(stored, inputs[0])
    wanted = {**held, "batch_stats": jax.tree.map(wide, wanted["batch_stats"])}
    converted = amprewrite.convert(LINEN, "promote")
    plain = amprewrite.convert(LINEN, "promote")
    for x in inputs:
        y, changed = jax.jit(
            lambda v, x: converted.apply(v, x, mutable=["batch_stats"])
        )(held, x)
        z, expected = jax.jit(lambda v, x: plain.apply(v, x, mutable=["batch_stats"]))(
            wanted, x
        )
        held, wanted = {**held, **changed}, {**wanted, **expected}
        assert dtypes(changed) == ["float32"] * 2
        np.testing.assert_array_equal(y, z)
        for name, found in changed["batch_stats"].items():
            np.testing.assert_array_equal(found, expected["batch_stats"][name])
    programs = 2 if stored in NARROW else 1
    runner: Any = converted_function_of(converted)
    assert len(runner.plans) == programs


@pytest.mark.parametrize("stored", [*NARROW, "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_nnx_stores_what_float32_statistics_become(stored, dtype):
    plain = model(stored)
    converted = amprewrite.convert(plain, "promote")
    wanted = amprewrite.convert(model("float32"), "promote")
    for x in batches(dtype):
        y, z = converted(x), wanted(x)
        np.testing.assert_array_equal(y, z)
        assert dtypes((plain.mean, plain.var)) == ["float32"] * 2
        np.testing.assert_array_equal(converted.mean[...], wanted.mean[...])
        np.testing.assert_array_equal(converted.var[...], wanted.var[...])
    whys = [c.why for c in converted.plan.casts if c.from_dtype == stored != "float32"]
    assert whys == [f"{stored} promote to float32"] * len(whys)
    assert bool(whys) == (stored in NARROW)


def test_statistics_that_are_only_read_keep_their_dtype():
    x = batches("bfloat16")[0]
    held = jax.tree.map(lambda a: a.astype("bfloat16"), variables("bfloat16", x))
    reading = nn.BatchNorm(use_running_average=True)
    found: Any = amprewrite.convert(reading, "promote").apply(held, x)
    expected: Any = reading.apply(held, x)
    assert found.dtype == expected.dtype == "bfloat16"
    frozen = model("bfloat16")
    expected = frozen(x, use_running_average=True)
    found = amprewrite.convert(frozen, "promote")(x, use_running_average=True)
    assert found.dtype == expected.dtype
    assert dtypes((frozen.mean, frozen.var)) == ["bfloat16"] * 2


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")
@pytest.mark.filterwarnings("ignore:rewritten 0 of")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_policies_that_only_lower_leave_it_to_the_library(dtype):
    x = batches(dtype)[0]
    converted = amprewrite.convert(LINEN, "bf16")
    found = converted.apply(variables("bfloat16", x), x, mutable=["batch_stats"])
    wanted = LINEN.apply(variables("bfloat16", x), x, mutable=["batch_stats"])
    assert dtypes(found) == dtypes(wanted)
    held, plain = model("bfloat16"), model("bfloat16")
    amprewrite.convert(held, "bf16")(x)
    plain(x)
    assert held.mean.dtype == plain.mean.dtype


def test_a_policy_that_lowers_and_promotes_stores_float32(tmp_path):
    file = tmp_path / "both.toml"
    file.write_text('extends = "bf16"\n[promotion]\nsystem = "jax"\n')
    x = batches("float32")[0]

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))

    held = Net().init(KEY, x)
    low = jax.tree.map(lambda a: a.astype("float16"), held["batch_stats"])
    converted = amprewrite.convert(Net(), file)
    y, changed = converted.apply(
        {**held, "batch_stats": low}, x, mutable=["batch_stats"]
    )
    assert (y.dtype, dtypes(changed)) == ("float32", ["float32"] * 2)
    assert converted.plan.lowered


def test_gradients_and_other_states_stay_as_they_are():
    x = batches("float32")[0]
    held = variables("bfloat16", x)
    converted = amprewrite.convert(LINEN, "promote")

    def loss(params):
        y, changed = converted.apply({**held, "params": params}, x, mutable=True)
        return (y**3).sum(), changed

    grads, changed = jax.grad(loss, has_aux=True)(held["params"])
    assert dtypes(grads) == ["float32"] * 2
    assert dtypes(changed["batch_stats"]) == ["float32"] * 2


def test_a_carry_of_narrow_statistics_is_refused_and_one_of_wide_ones_runs():
    xs = jnp.stack(batches("float32"))
    linen = amprewrite.convert(LINEN, "promote")

    def step(held, x):
        y, changed = linen.apply(held, x, mutable=["batch_stats"])
        return {**held, **changed}, y.sum()

    with pytest.raises(TypeError, match=r"bfloat16\[4\].*\n?.*float32\[4\]"):
        jax.lax.scan(step, variables("bfloat16", xs[0]), xs)
    held, _ = jax.lax.scan(step, variables("float32", xs[0]), xs)
    assert dtypes(held) == ["float32"] * 4


def test_a_complex_mean_is_no_narrow_statistic():
    z = jnp.ones((8, 4), "complex64") * (1 + 2j)
    held = variables("bfloat16", jnp.ones((8, 4)))
    with pytest.raises(ComplexTruncationError, match="initialise it as complex64"):
        amprewrite.convert(LINEN, "promote").apply(held, z, mutable=["batch_stats"])
    with pytest.raises(ComplexTruncationError, match="drops the imaginary part"):
        amprewrite.convert(model("bfloat16"), "promote")(z)
