"""The plans of the graphs that ``torch.compile(backend="amprewrite")`` captured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from amprewrite.errors import NotCapturedError, UnsupportedError, warn
from amprewrite.frameworks.torch_fx.compat import dynamo_state
from amprewrite.plan import Plan, join_plans

LIMIT = (
    "dynamo captured {name} for the last time, at its limit: a call that needs another "
    "capture will run as it is, in full precision; give numbers that vary as tensors, "
    "or raise recompile_limit= of torch.compile and "
    "torch._dynamo.config.accumulated_recompile_limit"
)


@dataclass
class Captured:
    """Captures of one call of ``torch.compile``.

    Attributes:
        plans: Their plans, without repetitions.
        modules: The modules whose methods were captured.
    """

    plans: list[Plan] = field(default_factory=list[Plan])
    modules: WeakSet[nn.Module] = field(default_factory=WeakSet[nn.Module])


_CAPTURED: WeakKeyDictionary[Any, Captured] = WeakKeyDictionary()
"""Captures by dynamo's converter, which lives as long as the compiled callable."""


def note(plan: Plan) -> None:
    """Add the plan of the graph that dynamo captures now to those of its caller.

    Dynamo stops after eight captures of a function and runs it as it is; the limit is
    raised here, and there is a warning when that one is reached.
    """
    converter = dynamo_state.current_converter()
    code = dynamo_state.current_code()
    if converter is None or code is None:
        return
    held = _CAPTURED.setdefault(converter, Captured())
    if isinstance(module := dynamo_state.current_self(), nn.Module):
        held.modules.add(module)
    if plan not in held.plans:
        held.plans.append(plan)
    dynamo_state.capture_on(converter)
    if dynamo_state.is_last_capture(converter):
        where = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
        warn(LIMIT.format(name=where))


def plan_of(model: Any) -> Plan:
    """Return the plan of a converted module, or of one that was compiled.

    Args:
        model: A result of ``convert``, of ``torch.compile`` with this package's backend
            or around a converted module, or a module that holds such modules.

    Returns:
        The plan; plans of several graphs are joined, with numbered op names.

    Raises:
        NotCapturedError: It was not called yet, or another backend compiled it.
        UnsupportedError: It is neither converted nor compiled.
    """
    found = list(dict.fromkeys(_plans(model)))
    if found:
        return join_plans(found)
    kind = type(model).__name__
    if dynamo_state.converters(model):
        msg = (
            f"this compiled {kind} has no plan: backend 'amprewrite' captured no graph "
            f"of it yet; call it once; want torch.compile(model, backend='amprewrite') "
            f"(of a function compiled twice, dynamo runs the graphs of the first)"
        )
        raise NotCapturedError(msg)
    msg = (
        f"found a {kind} without a plan; want a result of amprewrite.convert, or of "
        f"torch.compile(model, backend='amprewrite')"
    )
    raise UnsupportedError(msg)


def _plans(model: Any) -> Iterator[Plan]:
    """Yield the plans of a model; if it has none itself, those of its parts."""
    own = getattr(model, "plan", None)
    if isinstance(own, Plan):
        yield own
        return
    found = _captured(model)
    yield from found
    if not found and isinstance(model, nn.Module):
        for part in model.children():
            yield from _plans(part)


def _captured(model: Any) -> list[Plan]:
    """Return the plans of the graphs that were captured of a compiled model.

    If there are none, those that dynamo runs instead: of the same module, compiled
    elsewhere with equal options.
    """
    converters = dynamo_state.converters(model)
    own = [plan for one in converters for plan in _plans_by(one)]
    if own or not converters:
        return own
    module = dynamo_state.compiled_module(model)
    return [
        plan
        for other, captured in list(_CAPTURED.items())
        if module in captured.modules
        and dynamo_state.same_backend(converters[0], other)
        for plan in captured.plans
    ]


def _plans_by(converter: Any) -> Iterable[Plan]:
    try:
        found = _CAPTURED.get(converter)
    except TypeError:  # the part of a chain that is not hashable
        return ()
    return found.plans if found else ()
