"""Capture by ``torch.export`` while the model is converted: one graph, and its plan."""

from collections.abc import Iterator

from torch import nn

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.assemble import assemble
from amprewrite.frameworks.torch_fx.capture.named_weights import read_by_name
from amprewrite.frameworks.torch_fx.capture.one_graph import (
    PER_SIGNATURE,
    capture_for,
    refuse_mistake,
)
from amprewrite.frameworks.torch_fx.capture.program import is_program
from amprewrite.frameworks.torch_fx.capture.seen import Seen
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.plain.hidden import hidden_modules
from amprewrite.frameworks.torch_fx.programs.calls import call_key
from amprewrite.frameworks.torch_fx.programs.part_hooks import users_hooks
from amprewrite.frameworks.torch_fx.programs.structure import is_read
from amprewrite.frameworks.torch_fx.rewrite.read import read_runnable, written_constant


def export_now(conversion: Conversion) -> ConvertedModule | CaptureError:
    """Return the converted module, or the reason why export is not faithful.

    Raises:
        CaptureError: ``dynamic_shapes`` prevents the capture; or the model itself
            refuses the dtypes of its arguments.
        PlanMismatchError: The given plan was made for another program.
        UnsupportedError: An argument is a nested tensor of the strided layout.
    """
    call_key(conversion.args, conversion.kwargs)  # refuses tensors without a shape
    try:
        captured = capture_for(conversion.model, conversion.root, conversion.request)
        if conversion.trains:
            read_by_name(captured.module, conversion.root)
    except CaptureError as error:
        return beside_shapes(conversion, error)
    if captured.seen.constants:  # of few models
        captured.seen.written += _unread(conversion, captured.seen)
    reason = _effects(conversion) or captured.seen.reason(training=conversion.trains)
    if captured.seen.stored and not reason:
        reason = "export stores once what forward stores outside of the model"
    if conversion.trains and not reason:
        reason = _hidden(conversion.root)
    if reason:
        return _refused(conversion, reason)
    reading = read_runnable(
        captured, conversion.request, conversion.root, conversion.path
    )
    where = "" if is_program(conversion.model) else written_constant(reading.graph)
    if where:
        return _refused(conversion, f"{_COPIED} {where}")
    return assemble(conversion, captured, reading)


_COPIED = (
    "export copies a tensor that is neither a parameter nor a buffer, and that forward "
    "writes to at"
)


def _refused(conversion: Conversion, reason: str) -> CaptureError:
    shapes = conversion.request.dynamic_shapes is not None
    return CaptureError(f"{reason}; {PER_SIGNATURE}" if shapes else reason)


def beside_shapes(conversion: Conversion, error: CaptureError) -> CaptureError:
    """Return the reason why the model could not be captured, other than its shapes.

    Raises:
        CaptureError: ``dynamic_shapes`` is wrong for the model.
    """
    model, shapes = conversion.model, conversion.request.dynamic_shapes
    if shapes is None or not isinstance(model, nn.Module):
        return error
    refuse_mistake(model, conversion.args, conversion.kwargs, shapes, error)
    return CaptureError(f"{error}; {PER_SIGNATURE}")


def _unread(conversion: Conversion, seen: Seen) -> Iterator[str]:
    """Yield the names of constants that no further program would be captured for.

    A converted model of its own class writes them, and has programs for each value of
    the attributes that the model reads.
    """
    for constant in seen.constants:
        name = constant.settings or constant.name
        if not conversion.has_own_class or not is_read(name, seen.attributes):
            yield constant.full_name


def _hidden(root: nn.Module) -> str:
    """Return the reason why modules that are no submodules need dynamo in training.

    Their weights may be written to at each step, as averages of the model's.
    """
    held = hidden_modules(root).values()
    names = [type(m).__name__ for m in held if any(True for _ in m.parameters())]
    if not names:
        return ""
    return f"export keeps as constants the weights of {names[0]}, which is no submodule"


def _effects(conversion: Conversion) -> str:
    """Return the reason why hooks of the model need dynamo; empty if none does."""
    names = [*users_hooks(conversion.root)]
    if not names:
        return ""
    more = f" (and {len(names) - 1} more)" if names[1:] else ""
    return (
        f"export runs the hook {names[0]}{more} once, and it may do more than compute"
    )
