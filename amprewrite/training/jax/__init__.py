"""Training with JAX: loss scales, gradients of converted functions, skipped steps."""

from amprewrite.training.delayed import DelayedRule
from amprewrite.training.jax.delayed import DelayedScale, DelayedScales, delayed_dot
from amprewrite.training.jax.gradients import (
    filter_grad,
    filter_value_and_grad,
    grad,
    value_and_grad,
)
from amprewrite.training.jax.scales import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
)
from amprewrite.training.jax.trees import all_finite, select_tree
from amprewrite.training.jax.update import accumulate, lost_updates, optimizer_update

__all__ = [
    "DelayedRule",
    "DelayedScale",
    "DelayedScales",
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "StaticLossScale",
    "accumulate",
    "all_finite",
    "delayed_dot",
    "filter_grad",
    "filter_value_and_grad",
    "grad",
    "lost_updates",
    "optimizer_update",
    "select_tree",
    "value_and_grad",
]
