"""The low dtypes of a model, for advice on loss scales."""

from torch import nn

from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule


def low_dtypes(model: nn.Module) -> set[str]:
    """Return the low dtypes of the converted parts of ``model``.

    Empty if there are none, or before the first call.
    """
    found: set[str] = set()
    for part in model.modules():
        if isinstance(part, (ConvertedModule, LazyModule)):
            try:
                found.add(part.plan.low)
            except NotCapturedError:  # nothing is known before the first call
                continue
    return found
