"""Capture further programs of a converted model, at the calls that need them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from amprewrite.errors import CaptureError, NotCapturedError, PlanMismatchError
from amprewrite.frameworks.base import Request, announce
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.programs.shared_state import Capture, Wanted
from amprewrite.frameworks.torch_fx.strategies.dynamo import dynamo
from amprewrite.frameworks.torch_fx.strategies.export_now import export_now
from amprewrite.frameworks.torch_fx.subject import Subject

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


def captures(request: Request) -> Capture:
    """Return the function that captures further programs by ``request``.

    Args:
        request: The request of the conversion.
    """
    told = set[str]()

    def capture(wanted: Wanted) -> ConvertedModule:
        found = _captured(wanted, request)
        found.path = wanted.path
        for plan in found.plans:
            lines = [
                line
                for line in plan.warnings
                if wanted.first or not line.startswith(_OF_THE_WHOLE)
            ]
            announce(replace(plan, warnings=tuple(lines)), told)
        return found

    return capture


def _captured(wanted: Wanted, request: Request) -> ConvertedModule:
    """Return a program: by export with varying extents, by export, or by dynamo.

    Raises:
        CaptureError: The model cannot be captured; or only by dynamo, while it is
            being exported.
        NotCapturedError: A plan has to be within a tolerance on arguments that are not
            known, since the model is being exported.
    """
    if request.budget is not None and wanted.stand_ins and wanted.like is None:
        raise NotCapturedError(_NO_VALUES)
    cause = _kept_apart(wanted)
    for asked in () if cause else _requests(wanted, request):
        try:
            found = export_now(_subject(wanted, asked))
        except CaptureError as error:
            found = error
        except PlanMismatchError:
            continue  # other ops: they are planned as the request says
        if isinstance(found, ConvertedModule):
            return found
        cause = cause or found
    asked = replace(_asked(wanted, request), dynamic_shapes=None)
    assert cause is not None
    if wanted.exported:
        msg = f"{cause}; torch.export needs the converted model as one graph"
        raise CaptureError(msg) from cause
    return dynamo(_subject(wanted, asked), cause)


def _requests(wanted: Wanted, request: Request) -> Iterator[Request]:
    """Yield the requests to export a program, in the order in which they are tried."""
    asked = _asked(wanted, request)
    planned = wanted.like if request.budget is not None else request.plan
    if planned is not None:
        yield replace(asked, plan=planned)
    yield asked
    if wanted.dynamic_shapes is not None and not wanted.varies:
        yield replace(asked, dynamic_shapes=None)


def _asked(wanted: Wanted, request: Request) -> Request:
    return replace(
        request,
        args=wanted.args,
        kwargs=dict(wanted.kwargs),
        dynamic_shapes=wanted.dynamic_shapes,
        plan=None,
        training=wanted.keeps,
    )


def _subject(wanted: Wanted, request: Request) -> Subject:
    subject = Subject.of(wanted.model, request)
    return replace(subject, owned=True, path=wanted.path)


def _kept_apart(wanted: Wanted) -> CaptureError | None:
    """Return the reason to capture by dynamo: a hook, a number, an argument with state.

    Export flattens such an argument, so that writes of the model to it would be lost: a
    cache of keys and values that each step extends.
    """
    if wanted.reason:
        return CaptureError(wanted.reason)
    given: Any = (wanted.args, dict(wanted.kwargs))
    if wanted.varies and any(map(_is_number, pytrees.pytree.tree_leaves(given))):
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
