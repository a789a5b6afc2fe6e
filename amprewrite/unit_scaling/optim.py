"""Optimizers of torch with the learning rates of u-muP, and typed parameters."""

from amprewrite.unit_scaling.torch.optimizers import (
    SGD,
    Adam,
    AdamW,
    parameter_groups,
)
from amprewrite.unit_scaling.torch.parameters import Parameter, assign_types

__all__ = ["SGD", "Adam", "AdamW", "Parameter", "assign_types", "parameter_groups"]
