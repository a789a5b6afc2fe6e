"""Bayesian models whose network is converted; log densities stay float32."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")
nn = pytest.importorskip("flax.linen")

import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.contrib.module import random_flax_module
from numpyro.infer import SVI, Trace_ELBO, autoguide
from numpyro.infer.util import log_density

import amprewrite
from tests.jax_programs import floats, full_contractions, normal

X = normal(64, 4)
Y = jnp.sin(X.sum(1))


def network(params: Any, x: Any) -> Any:
    return (jnp.tanh(x @ params["w"]) @ params["v"])[:, 0]


def model(run: Any) -> None:
    shapes = {"w": (4, 8), "v": (8, 1)}
    priors = {k: dist.Normal().expand(s).to_event(2) for k, s in shapes.items()}
    params = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
    scale = numpyro.sample("scale", dist.HalfNormal())
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", dist.Normal(run(params, X), scale), obs=Y)


PARAMS = {"w": normal(4, 8), "v": normal(8, 1), "scale": jnp.float32(0.5)}


@pytest.fixture(scope="module")
def converted() -> Any:
    return amprewrite.convert(network)


def density(run: Any, params: Any) -> Any:
    return log_density(model, (run,), {}, params)[0]


def test_log_densities_are_float32_and_follow_the_plain_model(converted: Any) -> None:
    low, full = (
        jax.value_and_grad(density, 1)(run, PARAMS) for run in (converted, network)
    )
    assert low[0].dtype == jnp.float32
    assert 0 < abs(low[0] - full[0]) < 0.01 * abs(full[0])
    for name, gradient in full[1].items():
        assert low[1][name].dtype == jnp.float32
        distance = np.linalg.norm(low[1][name] - gradient)
        assert distance < 0.02 * np.linalg.norm(gradient)
    found = jax.make_jaxpr(lambda p: density(converted, p))(PARAMS)
    assert not full_contractions(found)


def test_a_density_that_is_converted_as_a_whole_keeps_its_log_terms_full() -> None:
    plan = amprewrite.inspect(lambda p: density(network, p), args=(PARAMS,))
    precisions = {d.native: d.precision for d in plan.decisions}
    assert precisions["dot_general"] == "bfloat16"
    assert precisions["log"] == precisions["reduce_sum"] == "float32"


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]


@pytest.mark.slow
def test_a_linen_module_with_random_weights_is_fitted() -> None:
    def fitted(module: Any) -> Any:
        def bayesian() -> None:
            run = random_flax_module(
                "net", module, prior=dist.Normal(), input_shape=(1, 4)
            )
            with numpyro.plate("rows", len(X)):
                numpyro.sample("y", dist.Normal(run(X), 0.3), obs=Y)

        guide = autoguide.AutoNormal(bayesian)
        optimizer = numpyro.optim.Adam(2e-2)
        inference = SVI(bayesian, guide, optimizer, Trace_ELBO())
        return inference.run(jax.random.key(0), 60, progress_bar=False)

    converted = amprewrite.convert(Network())
    found, expected = fitted(converted), fitted(Network())
    assert converted.plan.lowered
    assert {str(x.dtype) for x in floats(found)} == {"float32"}
    assert found.losses[-1] < 0.8 * found.losses[0]
    assert (found.losses != expected.losses).any()
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0.02)
