"""Fit the weights of a converted network by variational inference of numpyro."""

import jax
import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist
from numpyro.infer import SVI, Trace_ELBO, autoguide

import amprewrite


@amprewrite.convert
def network(weights: jax.Array, out: jax.Array, x: jax.Array) -> jax.Array:
    """Return f32[n] for inputs f32[n, 4]."""
    return (jnp.tanh(x @ weights) @ out)[:, 0]


def model(x: jax.Array, y: jax.Array) -> None:
    """Declare priors, which stay float32, and the network between them."""
    weights = numpyro.sample("weights", dist.Normal().expand([4, 8]).to_event(2))
    out = numpyro.sample("out", dist.Normal().expand([8, 1]).to_event(2))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(network(weights, out, x), 0.3), obs=y)


def main() -> None:
    """Fit a normal distribution to each weight."""
    x = jax.random.normal(jax.random.key(0), (64, 4))
    y = jnp.tanh(x.sum(1))
    guide = autoguide.AutoNormal(model)
    inference = SVI(model, guide, numpyro.optim.Adam(3e-2), Trace_ELBO())
    found = inference.run(jax.random.key(1), 150, x, y, progress_bar=False)
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(found.params)}

    print(network.plan.summary())
    print(f"loss {found.losses[0]:.0f} -> {found.losses[-1]:.0f}, parameters", *dtypes)


if __name__ == "__main__":
    main()
