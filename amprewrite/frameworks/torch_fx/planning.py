"""Plan a captured program: by the policy alone, or within a tolerance."""

from dataclasses import replace

from amprewrite.frameworks.torch_fx.build import build
from amprewrite.frameworks.torch_fx.capture.export import model_device
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.compile_program import compile_program
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.probes.tolerance import (
    Builders,
    plan_by_tolerance,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.plan import Plan

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
