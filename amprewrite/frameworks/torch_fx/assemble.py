"""From a program that was read to the converted module: plan, build."""

from amprewrite.frameworks.base import announce
from amprewrite.frameworks.torch_fx.build import build
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.compile_program import compile_program
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.derived.original import keep_program
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.planning import plan_for
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.run_check import run_check
from amprewrite.plan.validation.check import check_fits


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
