"""Unit initialisation: matrices of standard deviation 1, biases of zero."""

import re

import torch
from torch import nn

from amprewrite.unit_scaling.rules import STEADY

BIAS = re.compile(r"(.*_)?bias(_.*)?|.*bias")
"""Names of vectors that start as zeros; ``bias_ih_l0`` is one of a recurrent layer."""


def init_units(model: nn.Module) -> None:
    """Divide each parameter of two or more dimensions by its scale; zero biases.

    Those of zeros, which have no deviation, are drawn anew. Vectors and other constants
    (gains of normalisations) stay as they are.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                if not _is_constant(parameter):
                    parameter.div_(_scale_of(parameter))
                elif not parameter.any():
                    parameter.normal_()
            elif BIAS.fullmatch(name.rpartition(".")[2]):
                parameter.zero_()


def _scale_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return the deviation; the root mean square of gains, which hardly vary.

    Such are those of a weight norm.
    """
    wide = parameter.float()
    deviation, mean = wide.std(), wide.mean()
    return (
        deviation if deviation * STEADY >= mean.abs() else wide.square().mean().sqrt()
    )


def _is_constant(parameter: torch.Tensor) -> bool:
    """Return whether all numbers are equal; their deviation may be a rounding."""
    return bool((parameter == parameter.flatten()[:1]).all())
