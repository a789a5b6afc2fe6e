"""Convert and inspect torch models: capture, read, plan, rewrite."""

from torch import nn

from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.base import Request, refuse_plan
from amprewrite.frameworks.torch_fx.assemble import plan_for
from amprewrite.frameworks.torch_fx.capture.export import WITHOUT_ARGS, model_device
from amprewrite.frameworks.torch_fx.capture.one_graph import capture_for, refuse_unused
from amprewrite.frameworks.torch_fx.capture.program import Model
from amprewrite.frameworks.torch_fx.compat import threads
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.derived.classes import programs_of, refuse_parts
from amprewrite.frameworks.torch_fx.derived.derive import derive
from amprewrite.frameworks.torch_fx.derived.in_place import derive_in_place
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.distributed import refuse_wrapped
from amprewrite.frameworks.torch_fx.module.loss_scale_warning import watch_training
from amprewrite.frameworks.torch_fx.rewrite.read import read_runnable
from amprewrite.frameworks.torch_fx.strategies.again import Captures
from amprewrite.frameworks.torch_fx.strategies.table import beside_shapes, first_program
from amprewrite.plan import Plan


@threads.one_at_a_time
def convert(model: Model, request: Request) -> nn.Module:
    """Return ``model`` rewritten; see :func:`amprewrite.convert`.

    Raises:
        CaptureError: The model cannot be captured.
        PlanMismatchError: ``request.plan`` was made for another program.
        UnsupportedError: The model is wrapped for several processes already.
    """
    conversion = Conversion(model, request)
    refuse_wrapped(conversion.root)
    refuse_parts(conversion.root)
    model_device(conversion.root)  # refuses several
    if not conversion.at_once:
        refuse_plan(request)
        if request.dynamic_shapes is not None:
            refuse_unused(captured=False)
    program = first_program(conversion)
    if program is not None and not conversion.has_own_class:
        return watch_training(program, request)
    again = Captures(request)
    return watch_training(derive(conversion, program, again), request)


@threads.one_at_a_time
def convert_in_place(model: nn.Module, request: Request) -> None:
    """Convert ``model`` itself for training, captured at its calls.

    Raises:
        UnsupportedError: The model is converted or scripted already, or wrapped for
            several processes.
    """
    if not Conversion(model, request).has_own_class:
        msg = (
            f"{type(model).__name__} is converted, scripted or a program already; want "
            f"a plain module"
        )
        raise UnsupportedError(msg)
    refuse_wrapped(model)
    refuse_parts(model)
    derive_in_place(model, Captures(request))
    watch_training(model, request)


@threads.one_at_a_time
def inspect(model: Model, request: Request) -> Plan:
    """Return the plan for ``model`` without converting it.

    Raises:
        CaptureError: The model cannot be captured by export.
        UnsupportedError: No arguments were given.
    """
    programs = programs_of(model)
    if programs is not None:
        return programs.plan
    if isinstance(model, ConvertedModule):
        return model.plan
    if not request.has_arguments and isinstance(model, nn.Module):
        msg = "inspect needs args=, the arguments that the model is called with"
        raise UnsupportedError(msg)
    conversion = Conversion(model, request)
    refuse_wrapped(conversion.root)
    try:
        captured = capture_for(model, conversion.root, request)
    except CaptureError as error:
        found = beside_shapes(conversion, error)
        if request.processor is None and request.budget is None:
            found = CaptureError(f"{found}; {WITHOUT_ARGS}")
        raise found from error.__cause__
    return plan_for(
        conversion, captured, read_runnable(captured, request, conversion.root)
    )
