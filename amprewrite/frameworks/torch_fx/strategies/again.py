"""Capture further programs of a converted model, at the calls that need them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from amprewrite.errors import CaptureError, NotCapturedError, PlanMismatchError
from amprewrite.frameworks.base import Request, announce
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo
from amprewrite.frameworks.torch_fx.strategies.table import export_now

_OF_THE_WHOLE = ("unused rule", "rewritten 0 ")
"""Beginnings of warnings about a model that one of its programs does not justify.

A rule may be used in another program, and a part may have nothing to lower.
"""

_NO_VALUES = (
    "no program was captured for this call, and the tolerance cannot be measured while "
    "the model is exported, on arguments that are computed in the export; call the "
    "converted module once with such arguments before torch.export.export"
)
"""Message about arguments without values."""


class Captures:
    """Function that captures further programs of a converted model.

    Attributes:
        request: The request of the conversion.
    """

    def __init__(self, request: Request) -> None:
        """Begin without a warning that was given.

        Args:
            request: The request of the conversion.
        """
        self.request = request
        self._told = set[str]()

    def __call__(self, conversion: Conversion, /) -> ConvertedModule:
        """Return the program of a conversion; say its new warnings."""
        program = _captured(conversion)
        program.path = conversion.path
        for plan in program.plans:
            lines = [
                line
                for line in plan.warnings
                if conversion.first or not line.startswith(_OF_THE_WHOLE)
            ]
            announce(replace(plan, warnings=tuple(lines)), self._told)
        return program


def _captured(conversion: Conversion) -> ConvertedModule:
    """Return a program: by export with varying extents, by export, or by dynamo.

    Raises:
        CaptureError: The model cannot be captured; or only by dynamo, while it is
            being exported.
        NotCapturedError: A plan has to be within a tolerance on arguments that are not
            known, since the model is being exported.
    """
    measured = conversion.request.budget is not None
    if measured and conversion.stand_ins and conversion.like is None:
        raise NotCapturedError(_NO_VALUES)
    cause = _kept_apart(conversion)
    for asked in () if cause else _attempts(conversion):
        try:
            program = export_now(asked)
        except CaptureError as error:
            program = error
        except PlanMismatchError:
            continue  # other ops: they are planned as the request says
        if isinstance(program, ConvertedModule):
            return program
        cause = cause or program
    assert cause is not None
    if conversion.exported:
        msg = f"{cause}; torch.export needs the converted model as one graph"
        raise CaptureError(msg) from cause
    return dynamo(conversion.asking(plan=None, dynamic_shapes=None), cause)


def _attempts(conversion: Conversion) -> Iterator[Conversion]:
    """Yield the conversions by export, in the order in which they are tried."""
    request = conversion.request
    planned = conversion.like if request.budget is not None else request.plan
    if planned is not None:
        yield conversion.asking(plan=planned)
    yield conversion.asking(plan=None)
    if request.dynamic_shapes is not None and not conversion.varies:
        yield conversion.asking(plan=None, dynamic_shapes=None)


def _kept_apart(conversion: Conversion) -> CaptureError | None:
    """Return the reason to capture by dynamo: a hook, a number, an argument with state.

    Export flattens such an argument, so that writes of the model to it would be lost: a
    cache of keys and values that each step extends.
    """
    if conversion.reason:
        return CaptureError(conversion.reason)
    given: Any = (conversion.args, conversion.kwargs)
    if conversion.varies and any(map(_is_number, pytrees.pytree.tree_leaves(given))):
        return CaptureError("an argument is a number, which export takes as constant")
    for kind in pytrees.node_types(given):
        if not issubclass(kind, (dict, list, tuple)):
            return CaptureError(
                f"an argument is a {kind.__name__}, whose attributes the model may "
                f"write, which export takes back"
            )
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)
