"""Under the policy ``promote`` the state of a module keeps its stored dtype."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
eqx = pytest.importorskip("equinox")

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import amprewrite
from amprewrite.errors import ComplexTruncationError

pytestmark = pytest.mark.usefixtures("strict_jax", "x64")

KEY = jax.random.key(0)
DTYPES = ["float16", "bfloat16", "float32", "float64"]
STEPS = 3
MOMENTUM = 0.9


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def batches(dtype):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(3, 2, (8, 4)), dtype) for _ in range(STEPS)]


def dtypes(held: Any):
    return [str(leaf.dtype) for leaf in jax.tree.leaves(held)]


def state_casts(converted):
    found = [c for c in converted.plan.casts if c.why.startswith("a state keeps")]
    return sorted((c.from_dtype, c.to_dtype, c.consumers) for c in found)


NARROWED = [("float64", "float32", ("output",))] * 2


def statistics(inputs, fresh):
    """Running mean and variance in float64, as the layers define them."""
    mean, var = np.zeros(4), np.ones(4)
    for number, x in enumerate(inputs):
        wide = np.asarray(x, np.float64)
        keeps = 0.0 if fresh and not number else MOMENTUM
        mean = keeps * mean + (1 - keeps) * wide.mean(0)
        var = keeps * var + (1 - keeps) * wide.var(0)
    return mean, var


def assert_near(found, wanted):
    for array, exact in zip(found, wanted, strict=True):
        error = np.abs(np.asarray(array, np.float64) - exact).max()
        assert error < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_of_linen_keep_their_dtype(dtype):
    model = nn.BatchNorm(use_running_average=False, momentum=MOMENTUM)
    variables = model.init(KEY, batches(dtype)[0])
    converted = amprewrite.convert(model, "promote")
    before = dtypes(variables)
    for x in batches(dtype):
        y, changed = converted.apply(variables, x, mutable=["batch_stats"])
        variables = {**variables, **changed}
        assert dtypes(variables) == before == ["float32"] * 4
        assert y.dtype == jnp.promote_types(dtype, "float32")
    stats = variables["batch_stats"]
    assert_near((stats["mean"], stats["var"]), statistics(batches(dtype), fresh=False))
    wide = dtype == "float64"
    assert state_casts(converted) == (NARROWED if wide else [])
    if wide:
        whys = {cast.why for cast in converted.plan.casts}
        named = "a state keeps the dtype it is stored in: %batch_stats.mean is float32"
        assert named in whys


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("error")
def test_statistics_of_nnx_keep_their_dtype_without_a_warning(dtype):
    model = nnx.BatchNorm(
        4, use_running_average=False, momentum=MOMENTUM, rngs=nnx.Rngs(0)
    )
    converted = amprewrite.convert(model, "promote")
    for x in batches(dtype):
        y = converted(x)
        assert dtypes(nnx.state(converted)) == ["float32"] * 4
        assert y.dtype == jnp.promote_types(dtype, "float32")
    found = (converted.mean[...], converted.var[...])
    assert_near(found, statistics(batches(dtype), fresh=False))
    assert state_casts(converted) == (NARROWED if dtype == "float64" else [])


@pytest.mark.parametrize("stored", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_statistics_of_equinox_keep_their_dtype(dtype, stored):
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    model, state = make(4, "batch", mode="ema", momentum=MOMENTUM, dtype=stored)
    converted = amprewrite.convert(model, "promote")
    run = jax.vmap(converted, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    before = dtypes(state)
    for x in batches(dtype):
        y, state = run(x, state)
        assert dtypes(state) == before == ["bool", stored, stored]
        assert y.dtype == jnp.promote_types(dtype, stored)
    if dtype != "bfloat16":  # Equinox takes the mean in the dtype of the input
        _, mean, var = jax.tree.leaves(state)
        assert_near((mean, var), statistics(batches(dtype), fresh=True))
    narrows = (dtype, stored) == ("float64", "float32")
    assert state_casts(converted) == (NARROWED if narrows else [])


def test_a_state_in_a_plain_function_keeps_its_dtype():
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    model, state = make(4, "batch", mode="ema", dtype="float32")

    def step(model, state, x):
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return run(x, state)

    converted = amprewrite.convert(step, "promote")
    before = dtypes(state)
    for x in batches("float64"):
        y, state = converted(model, state, x)
        assert (y.dtype, dtypes(state)) == (jnp.float64, before)
    assert state_casts(converted) == NARROWED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_the_cache_of_linen_keeps_its_dtype(dtype, stored):
    x = jnp.ones((1, STEPS, 4), dtype)
    model = nn.MultiHeadDotProductAttention(2, decode=True)
    variables = model.init(KEY, x.astype("float32"))
    cache = jax.tree.map(lambda a: a.astype(stored) if a.ndim else a, variables)[
        "cache"
    ]
    variables = {"params": variables["params"], "cache": cache}
    converted = amprewrite.convert(model, "promote")
    before = dtypes(cache)
    for step in range(STEPS):
        at = x[:, step : step + 1]
        y, changed = converted.apply(variables, at, mutable=["cache"])
        variables = {**variables, **changed}
        assert dtypes(variables["cache"]) == before == ["int32", stored, stored]
        assert y.dtype == jnp.promote_types(dtype, "float32")
    assert variables["cache"]["cache_index"] == STEPS
    assert (variables["cache"]["cached_key"][:, :STEPS] != 0).any()
    written = jnp.promote_types(dtype, "float32")
    if written != stored:
        narrowed = {c.why for c in converted.plan.casts if c.to_dtype == stored}
        assert narrowed == {f"the tensor written into keeps its dtype, {stored}"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_the_cache_of_nnx_keeps_its_dtype(dtype, stored):
    model = nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
    model.init_cache((1, STEPS, 4), dtype=stored)
    converted = amprewrite.convert(model, "promote")
    for step in range(STEPS):
        y = converted(jnp.ones((1, 1, 4), dtype))
        assert converted.cached_key.dtype == converted.cached_value.dtype == stored
        assert converted.cache_index[...] == step + 1
        assert y.dtype == jnp.promote_types(dtype, "float32")


def test_state_is_kept_under_jit_and_by_gradients():
    model = nn.BatchNorm(use_running_average=False)
    x = batches("float64")[0]
    variables = model.init(KEY, x)
    converted = amprewrite.convert(model, "promote")

    def loss(apply, params):
        y, changed = apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return (y**3).sum(), changed

    (value, changed), gradient = jax.jit(
        jax.value_and_grad(lambda p: loss(converted.apply, p), has_aux=True)
    )(variables["params"])
    expected, _ = loss(model.apply, variables["params"])
    assert dtypes(changed) == dtypes(gradient) == ["float32"] * 2
    assert value == pytest.approx(float(expected), rel=1e-12)
    wanted = jax.grad(lambda p: loss(model.apply, p)[0])(variables["params"])
    for name, found in gradient.items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-6)


def test_nnx_trains_with_state_of_its_dtype():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(4, use_running_average=False, rngs=rngs)
            self.head = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.head(self.norm(x))

    converted = amprewrite.convert(Model(nnx.Rngs(0)), "promote")

    @nnx.jit
    def step(model, x):
        return nnx.grad(lambda m: (m(x) ** 2).sum())(model)

    for x in batches("float64"):
        gradient = step(converted, x)
        assert set(dtypes(gradient)) == {"float32"}
        assert converted.norm.mean.dtype == converted.norm.var.dtype == "float32"


Z = jnp.ones((8, 4), "complex64") * (1 + 2j)


def test_a_complex_mean_is_not_stored_as_a_real_number():
    linen = nn.BatchNorm(use_running_average=False)
    variables = linen.init(KEY, Z)
    with pytest.raises(
        ComplexTruncationError,
        match=r"state %batch_stats.mean: found complex64 .* initialise it as complex64",
    ):
        amprewrite.convert(linen, "promote").apply(
            variables, Z, mutable=["batch_stats"]
        )
    module = nnx.BatchNorm(4, use_running_average=False, rngs=nnx.Rngs(0))
    with pytest.raises(ComplexTruncationError, match="drops the imaginary part"):
        amprewrite.convert(module, "promote")(Z)
    make = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    model, state = make(4, "batch", mode="batch", dtype="float32")
    run = jax.vmap(
        amprewrite.convert(model, "promote"),
        axis_name="batch",
        in_axes=(0, None),
        out_axes=(0, None),
    )
    with pytest.raises(
        ComplexTruncationError, match="complex64 for a state of float32"
    ):
        run(Z, state)


def test_a_complex_mean_stays_in_a_state_that_was_made_complex():
    model = nn.BatchNorm(use_running_average=False, momentum=MOMENTUM)
    variables: Any = model.init(KEY, Z)
    stats = variables["batch_stats"]
    stats = {"mean": stats["mean"].astype("complex64"), "var": stats["var"]}
    converted = amprewrite.convert(model, "promote")
    for _ in range(STEPS):
        _, changed = converted.apply(
            {**variables, "batch_stats": stats}, Z, mutable=["batch_stats"]
        )
        stats = changed["batch_stats"]
        assert dtypes(stats) == ["complex64", "float32"]
    np.testing.assert_allclose(stats["mean"], (1 - MOMENTUM**STEPS) * Z[0], rtol=1e-5)


def test_a_complex_mean_is_truncated_where_the_policy_allows_it(tmp_path):
    file = tmp_path / "truncating.toml"
    file.write_text('extends = "promote"\n[promotion]\ntruncate_complex = true\n')
    model = nn.BatchNorm(use_running_average=False, momentum=MOMENTUM)
    variables = model.init(KEY, Z)
    converted = amprewrite.convert(model, file)
    _, changed = converted.apply(variables, Z, mutable=["batch_stats"])
    mean = changed["batch_stats"]["mean"]
    assert mean.dtype == "float32"
    np.testing.assert_allclose(mean, (1 - MOMENTUM) * Z[0].real, rtol=1e-5)


def test_a_float_is_not_stored_as_an_integer():
    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x):
            count = self.variable("state", "count", lambda: jnp.zeros((), "int32"))
            count.value = count.value + 0.5
            return x

    model = Counter()
    variables = {"state": {"count": jnp.zeros((), "int32")}}
    converted = amprewrite.convert(model, "promote")
    _, changed = converted.apply(variables, Z, mutable=["state"])
    assert changed["state"]["count"] == 0.5


def test_other_policies_leave_the_dtypes_of_states_to_the_library():
    model = nn.BatchNorm(use_running_average=False)
    x = batches("float64")[0]
    variables = model.init(KEY, x)
    with pytest.warns(amprewrite.errors.AmpWarning, match="rewritten 0 of"):
        _, changed = amprewrite.convert(model, "bf16").apply(
            variables, x, mutable=["batch_stats"]
        )
    assert dtypes(changed) == ["float64"] * 2
