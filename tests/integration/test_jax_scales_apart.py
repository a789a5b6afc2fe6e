"""Loss scales of devices in shard_map and pmap: one for all, or an error."""

import numpy as np
import pytest

from amprewrite.errors import ArgumentError

jax = pytest.importorskip("jax")

import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from amprewrite.training.jax import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    accumulate,
    value_and_grad,
)

pytestmark = [
    pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices"),
    pytest.mark.filterwarnings("ignore:training in float16 without a loss scale"),
]
W, X = jnp.ones((4, 1)), jnp.ones((8, 4)).at[5, 0].set(jnp.inf)
MESSAGE = r"of the axis 'd' may find .*; found axis_name none, want axis_name='d': "


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


EACH, SAME = P("d"), P()


def shared(run, *, check, out=EACH, mesh=((8,), ("d",))):
    sizes, names = mesh
    kinds = (AxisType.Auto,) * len(sizes)
    grid = jax.make_mesh(sizes, names, axis_types=kinds)
    specs = {"in_specs": (SAME, SAME, EACH), "out_specs": out}
    return jax.jit(jax.shard_map(run, mesh=grid, check_vma=check, **specs))


def scale_of_step(axis_name=None, scale=None, *, reduces=False):
    """A step that gives the scale of each device."""

    def run(state, w, x):
        def of_all(w, x):
            return lax.pmean(loss(w, x), "d") if reduces else loss(w, x)

        w = w if reduces else lax.pcast(w, "d", to="varying")
        current = state if scale is None else scale
        step = value_and_grad(of_all, "fp16", loss_scale=current, axis_name=axis_name)
        after = step(w, x)[1]
        return jnp.reshape(jnp.asarray(after.loss_scale), (1,))

    return run


@pytest.mark.parametrize("check", [True, False])
def test_devices_that_may_disagree_are_refused(check):
    with pytest.raises(ArgumentError, match=MESSAGE):
        shared(scale_of_step(), check=check)(DynamicLossScale(16.0), W, X)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("axis_name", ["d", ("d",)])
def test_devices_agree_with_an_axis(check, axis_name):
    run = shared(scale_of_step(axis_name), check=check, out=SAME)
    after = run(DynamicLossScale(16.0), W, X)
    assert np.asarray(after).tolist() == [8.0]


@pytest.mark.parametrize("check", [True, False])
def test_each_device_has_a_scale_if_it_is_asked_for(check):
    after = shared(scale_of_step(()), check=check)(DynamicLossScale(16.0), W, X)
    assert np.asarray(after).tolist() == [16.0] * 5 + [8.0] + [16.0] * 2


def test_scales_that_vary_already_stay_apart():
    def run(state, w, x):
        state = jax.tree.map(lambda leaf: lax.pcast(leaf, "d", to="varying"), state)
        return scale_of_step()(state, w, x)

    after = shared(run, check=True)(DynamicLossScale(16.0), W, X)
    assert np.asarray(after).tolist() == [16.0] * 5 + [8.0] + [16.0] * 2


def test_gradients_that_are_reduced_need_no_axis():
    run = shared(scale_of_step(reduces=True), check=True, out=SAME)
    assert np.asarray(run(DynamicLossScale(16.0), W, X)).tolist() == [8.0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("scale", [NoOpLossScale(), StaticLossScale(4.0)])
def test_a_constant_scale_cannot_disagree(check, scale):
    run = shared(scale_of_step(scale=scale), check=check, out=SAME)
    run(DynamicLossScale(16.0), W, X)


def test_an_axis_that_is_missing_is_named():
    mesh = ((4, 2), ("d", "m"))

    def run(state, w, x):
        w = lax.pcast(w, ("d", "m"), to="varying")
        return value_and_grad(loss, "fp16", loss_scale=state, axis_name="d")(w, x)[1]

    with pytest.raises(ArgumentError, match=r"axis 'm' .*axis_name=\('d', 'm'\)"):
        shared(run, check=True, out=P("m"), mesh=mesh)(DynamicLossScale(16.0), W, X)


def test_batches_of_gradients_are_refused_too():
    def run(state, w, x):
        w = lax.pcast(w, "d", to="varying")
        step = value_and_grad(loss, "fp16", loss_scale=state, axis_name="d")
        return accumulate(lambda batch: step(w, batch), x[None], loss_scale=state)[1]

    with pytest.raises(ArgumentError, match=MESSAGE):
        shared(run, check=False, out=SAME)(DynamicLossScale(16.0), W, X)


def test_a_map_over_models_has_a_scale_for_each():
    scales = jax.vmap(DynamicLossScale)(jnp.full(8, 16.0))
    weights = jnp.broadcast_to(W, (8, 4, 1))

    def run(state, w, x):
        return value_and_grad(loss, "fp16", loss_scale=state)(w, x[None])[1]

    for mapped in (jax.vmap(run), jax.vmap(run, axis_name="models"), jax.pmap(run)):
        after = mapped(scales, weights, X).loss_scale
        assert np.asarray(after).tolist() == [16.0] * 5 + [8.0] + [16.0] * 2


def test_a_named_pmap_is_told():
    def run(state, w, x):
        return value_and_grad(loss, "fp16", loss_scale=state)(w, x[None])[1]

    mapped = jax.pmap(run, axis_name="d", in_axes=(None, None, 0))
    with pytest.raises(ArgumentError, match=MESSAGE):
        mapped(DynamicLossScale(16.0), W, X)


def test_shardings_under_jit_need_no_axis():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x = jax.device_put(X, jax.NamedSharding(mesh, P("d")))

    @jax.jit
    def run(state, w, x):
        return value_and_grad(loss, "fp16", loss_scale=state)(w, x)[1]

    assert float(run(DynamicLossScale(16.0), W, x).loss_scale) == 8.0
