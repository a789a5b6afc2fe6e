"""The strategies to capture a torch model, in the order in which they are tried."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo


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


Result = ConvertedModule | CaptureError | None
"""The program, None if it is captured later, or the reason to try the next strategy."""


@dataclass(frozen=True)
class Strategy:
    """One strategy to capture a model.

    Attributes:
        name: Its name.
        when: Text of the condition under which it is tried.
        applies: The condition as a function.
        convert: Returns the program, or the reason why the model passes on to
            the next strategy that applies. Its second argument is the reason why the
            model was passed on to this one, None if it was not. It returns None if the
            model is exported at its first call.
        passes_on: Reasons to pass on; without any, a failure is raised.
    """

    name: str
    when: str
    applies: Callable[[Conversion], bool]
    convert: Callable[[Conversion, CaptureError | None], Result]
    passes_on: tuple[str, ...] = ()


STRATEGIES = (
    Strategy(
        name="export now",
        when="there are arguments, or the model is an exported program",
        applies=lambda conversion: conversion.at_once,
        convert=lambda conversion, _: export_now(conversion),
        passes_on=(
            "torch.export cannot capture the model, with or without dynamic_shapes",
            "forward writes to attributes, which export takes back",
            "forward writes to variables outside of the model, which export does once",
            "forward seeds the random generator, which export does once",
            "forward draws numbers by Python or NumPy, which export makes constants",
            "a forward hook may do more than compute, which export does once",
            "a trained model holds a module that is no submodule: export freezes it",
            "a trained model has its own backward, checkpoints or gradient hooks",
        ),
    ),
    Strategy(
        name="export on call",
        when="there are no arguments, and operands are promoted: dynamo would run the "
        "model's own ops on operands of different dtypes, which they refuse",
        applies=lambda conversion: (
            not conversion.at_once and conversion.request.processor is not None
        ),
        convert=lambda _, __: None,
    ),
    Strategy(
        name="dynamo",
        when="no other strategy captured the model; refused where it is needed as one "
        "graph, for a plan, a tolerance or promotion",
        applies=lambda _: True,
        convert=dynamo,
    ),
)
"""Every strategy; the last one applies to every model and passes none on."""


def first_program(conversion: Conversion) -> ConvertedModule | None:
    """Return the program that is captured at once; None if it is at the first call.

    Raises:
        CaptureError: The model cannot be captured.
    """
    passed: CaptureError | None = None
    for strategy in STRATEGIES:
        if strategy.applies(conversion):
            found = strategy.convert(conversion, passed)
            if not isinstance(found, CaptureError):
                return found
            passed = found
    raise AssertionError(passed)  # the last strategy passes no model on
