"""Optimizers of optax with the learning rates of u-muP."""

from amprewrite.unit_scaling.jax.optimizers import adam, adamw, scale_by_mup, sgd

__all__ = ["adam", "adamw", "scale_by_mup", "sgd"]
