"""The pass over a whole model: find its framework, check the request, scale a copy."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.unit_scaling.constraints import apply_constraint
from amprewrite.unit_scaling.graph.assign import AUTO
from amprewrite.unit_scaling.program import Settings


def unit_scale(  # noqa: PLR0913  # the public signature; all but three are by keyword
    model: object,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    constraint: str | None = AUTO,
    tau: float = 0.5,
    mult: Mapping[str, float] | None = None,
    init: bool = True,
) -> Any:
    """Scale a model; see :func:`amprewrite.unit_scale`."""
    if constraint != AUTO:
        _check_constraint(constraint)
    if not tau > 0:
        msg = f"tau is {tau}; want a weight above 0, such as 0.5"
        raise UnitScalingError(msg)
    settings = Settings(constraint, tau, dict(mult or {}))
    given: Any = model
    call = tuple(args), dict(kwargs or {})
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    kinds = (torch.nn.Module, torch.export.ExportedProgram) if torch else ()
    if isinstance(model, kinds):
        program = import_module("amprewrite.unit_scaling.torch.program")
    elif jax is not None and callable(model):
        program = import_module("amprewrite.unit_scaling.jax.program")
    else:
        msg = (
            "unit_scale takes a torch.nn.Module, GraphModule or ExportedProgram, or "
            "with JAX imported a function of JAX or a module of Equinox or Flax, not "
            f"a {type(model).__name__}"
        )
        raise UnsupportedError(msg)
    return program.unit_scale(given, *call, settings, init=init)


def _check_constraint(constraint: str | None) -> None:
    """Refuse the name of no constraint.

    Raises:
        UnitScalingError: It is unknown.
    """
    try:
        apply_constraint(constraint, 1.0, 1.0)
    except UnitScalingError as error:
        if "unknown" in str(error):
            raise
