"""The advice on a loss scale for the converted parts of a torch model."""

from collections.abc import Iterator

from torch import nn

from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Plan
from amprewrite.plan.facts import gradient_format, is_unit_scaled
from amprewrite.training.state import advice


def advice_for(model: nn.Module) -> str | None:
    """Return a hint about the loss scale of ``model``; empty if there is none.

    A scale beside a unit-scaled part is one; that it is not needed is one where no part
    needs it. None if no converted part is known: there is none, or before the first
    call.
    """
    plans = list(_plans(model))
    if not plans:
        return None
    for plan in plans:
        if is_unit_scaled(plan):
            found = advice(gradient_format(plan), scales=True, unit_scaled=True)
            if found:
                return found
    hints = {advice(gradient_format(plan), scales=True) for plan in plans}
    return "" if "" in hints else min(hints)


def _plans(model: nn.Module) -> Iterator[Plan]:
    """Yield the plan of each converted part of ``model`` that ran."""
    for part in model.modules():
        programs = programs_of(part)
        held = part if isinstance(part, ConvertedModule) else programs
        if held is not None:
            try:
                yield held.plan
            except NotCapturedError:  # nothing is known before the first call
                continue
