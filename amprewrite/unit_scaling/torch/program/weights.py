"""Unit initialisation: matrices of standard deviation 1, biases of zero."""

import torch
from torch import nn


def init_units(model: nn.Module) -> None:
    """Divide each parameter of two or more dimensions by its deviation; zero biases.

    Constant ones, which have no deviation, are drawn anew. Other vectors (gains of
    normalisations) stay as they are.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                deviation = float(parameter.float().std())
                if deviation > 0:
                    parameter.div_(deviation)
                else:
                    parameter.normal_()
            elif name.rpartition(".")[2].endswith("bias"):
                parameter.zero_()
