"""The strategies to capture a torch model, in the order in which they are tried."""

from collections.abc import Callable
from dataclasses import dataclass

from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo
from amprewrite.frameworks.torch_fx.strategies.export_now import export_now

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
