"""From a captured program to one with factors: analysis, rules, plan, writing."""

from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule

from amprewrite.errors import UnitScalingError, UnsupportedError
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.ir import ProgramGraph, Value
from amprewrite.unit_scaling.graph import (
    Differentiable,
    ScalePlan,
    differentiable,
)
from amprewrite.unit_scaling.program import plan_scales
from amprewrite.unit_scaling.settings import Settings
from amprewrite.unit_scaling.torch.program.rules import Rules
from amprewrite.unit_scaling.torch.program.write_scales import (
    ScaleWriter,
    without_writes,
)


def insert_scales(
    module: GraphModule, example: tuple[Any, Mapping[str, Any]], settings: Settings
) -> ScalePlan:
    """Insert factors into a captured program, and return their plan.

    Args:
        module: The program; it is changed in place, after all rules are found.
        example: Arguments of a call.
        settings: How to scale.

    Raises:
        UnitScalingError: An op has no rule, or nothing is differentiable.
        UnsupportedError: The program has factors already, or complex numbers, or writes
            to a value that is differentiated.
    """
    without_writes(module)
    reading = read(module)
    refuse_unsupported(reading.graph)
    live = differentiable(reading.graph)
    _refuse(live)
    rules = Rules(reading, live, example, settings.mult)
    units, plan = plan_scales(live, rules.of, settings)
    ScaleWriter(reading, units).write(plan)
    return plan


def refuse_unsupported(graph: ProgramGraph) -> None:
    """Refuse complex numbers, and writes in place, that depend on parameters or inputs.

    Statistics of a normalisation may be written.

    Raises:
        UnsupportedError: Names the first such op.
    """
    reached = {v.name for v in graph.inputs("parameter", "input") if not _is_whole(v)}
    for op in graph.ops:
        if not reached.intersection(op.operands):
            continue
        if op.mutates and op.traits.group != "normalisation":
            msg = (
                f"{op.native} at {op.source} writes to a tensor that is "
                "differentiated; use an op that makes a new tensor: torch.where"
            )
            raise UnsupportedError(msg)
        for value in (graph.values[name] for name in op.results):
            if value.dtype.startswith("complex"):
                msg = (
                    f"unit scaling of complex tensors has no rule: {op.native} at "
                    f"{op.source}; write it with real and imaginary parts"
                )
                raise UnsupportedError(msg)
            if not _is_whole(value):
                reached.add(value.name)


def _is_whole(value: Value) -> bool:
    """Return whether a value holds integers or truth values."""
    return not value.is_float and not value.dtype.startswith("complex")


def _refuse(live: Differentiable) -> None:
    """Refuse programs that cannot be scaled.

    Raises:
        UnitScalingError: Nothing is differentiable.
        UnsupportedError: There are factors already.
    """
    if not live.ops:
        msg = (
            "no float output depends on a float parameter or input: there is nothing "
            "to scale; want a model with an output that is differentiated"
        )
        raise UnitScalingError(msg)
    for op in live.ops:
        if op.native == "amprewrite.scale.default":
            msg = (
                f"the model has factors of unit scaling already, at {op.source}; want "
                "a model without ops of amprewrite.unit_scaling"
            )
            raise UnsupportedError(msg)
