"""From a program that was read to the converted module: plan, build."""

from dataclasses import replace

from torch import nn

from amprewrite.frameworks.base import announce
from amprewrite.frameworks.torch_fx.capture.export import model_device
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.compile_program import compile_program
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.derived.original import keep_program
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.signature import signature_of
from amprewrite.frameworks.torch_fx.module.snapshot import own_tensors
from amprewrite.frameworks.torch_fx.module.state import (
    fold_copies,
    mirror_extras,
    mirror_state,
    stored_weights,
)
from amprewrite.frameworks.torch_fx.probes.tolerance import (
    Builders,
    plan_by_tolerance,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.frameworks.torch_fx.rewrite.write import rewrite
from amprewrite.frameworks.torch_fx.run_check import run_check
from amprewrite.plan import Plan
from amprewrite.plan.validation.check import check_fits
from amprewrite.runtime.collector import collector_paused


def assemble(
    conversion: Conversion, captured: Captured, reading: Reading
) -> ConvertedModule:
    """Return the module that runs a captured program by its plan.

    Args:
        conversion: The model and the request.
        captured: The program, with the observations of its capture.
        reading: The program with its graph; it is rewritten in place.

    Raises:
        PlanMismatchError: The given plan was made for another program.
        ToleranceError: No plan is within the tolerance.
    """
    root, request, trains = conversion.root, conversion.request, conversion.trains
    if request.plan is None:
        plan = plan_for(conversion, captured, reading)
    else:
        plan = request.plan
        check_fits(reading.graph, plan, training=trains, mode=conversion.mode)
    look = run_check(conversion, reading, plan)
    converted = build(root, reading, plan, shared=trains or conversion.owned)
    converted.lowers = request.lowering
    converted.constants = tuple(captured.seen.constants)
    converted.attributes = captured.seen.attributes
    if not conversion.has_own_class:
        keep_program(converted, root, shared=trains)
    converted.note(*look(converted))
    if not conversion.owned:
        announce(converted.decided)
    if request.compile:
        compile_program(converted, trains=trains)
    return converted


SLOW_FLOAT16 = (
    "float16 on a CPU: most CPUs have no float16 matrix kernels, and it ran 4 times "
    "slower than float32 where measured; use bf16 there"
)
"""Warning of a plan for a CPU."""


def plan_for(conversion: Conversion, captured: Captured, reading: Reading) -> Plan:
    """Return the plan for a captured program.

    Args:
        conversion: The model and the request.
        captured: The program.
        reading: The program graph of that program.

    Raises:
        ToleranceError: No plan is within the tolerance.
        UnsupportedError: The error of the model cannot be measured.
    """
    root, request = conversion.root, conversion.request
    reading.graph = replace(reading.graph, taped=conversion.trains)

    def candidate(captured: Captured, plan: Plan) -> ConvertedModule:
        return build(
            root, read(captured.module, part=conversion.path), plan, shared=True
        )

    def runnable(captured: Captured, plan: Plan) -> ConvertedModule:
        made = candidate(captured, request.with_regions(reading.graph, plan))
        made.lowers = request.lowering
        if request.compile or request.target == "compiled":
            compile_program(made, trains=conversion.trains)
        return made

    if request.budget is None:
        plan = request.planner(
            reading.graph, keep_parameter_dtype=conversion.trains, captured=captured.how
        )
    else:
        plan = plan_by_tolerance(
            reading,
            root,
            request,
            captured,
            Builders(candidate, runnable),
            training=conversion.trains,
        )
    plan = request.with_regions(reading.graph, plan)
    plan = replace(plan, mode=conversion.mode).with_warnings(*captured.notes)
    device = request.device or model_device(root)
    slow = plan.low == "float16" and device == "cpu"
    return plan.with_warnings(SLOW_FLOAT16) if slow else plan


@collector_paused()
def build(
    root: nn.Module, reading: Reading, plan: Plan, *, shared: bool
) -> ConvertedModule:
    """Rewrite a program by ``plan`` and return the module that runs it.

    Args:
        root: The model.
        reading: The program with its graph; it is rewritten in place.
        plan: The plan.
        shared: Whether tensors that keep their dtype are the model's own, not copies.

    Raises:
        PlanMismatchError: The plan was made for another program.
    """
    module = reading.module
    low = stored_weights(reading, plan)
    kept = low if shared else own_tensors(root, module, low)
    signature = signature_of(root, module)
    plan = rewrite(reading, plan)
    recipe = fold_copies(module)
    converted = ConvertedModule()
    mirror_state(converted, root, kept)
    mirror_extras(converted, module, kept)
    converted.install(module, plan, signature, training=root.training)
    converted.keep_copies(recipe)
    return converted
