"""The low dtypes of a model, for advice on loss scales."""

from torch import nn

from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule


def low_dtypes(model: nn.Module) -> set[str]:
    """Return the low dtypes of the converted parts of ``model``.

    Empty if there are none, or before the first call.
    """
    found: set[str] = set()
    for part in model.modules():
        programs = programs_of(part)
        held = part if isinstance(part, ConvertedModule) else programs
        if held is not None:
            try:
                found.add(held.plan.low)
            except NotCapturedError:  # nothing is known before the first call
                continue
    return found
