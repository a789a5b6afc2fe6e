"""The plans of the graphs that ``torch.compile(backend="amprewrite")`` captured."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from amprewrite.errors import NotCapturedError, UnsupportedError, warn
from amprewrite.frameworks.torch_fx.compat import compiling
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Plan, join_plans
from amprewrite.plan.fields import Lowering

LIMIT = (
    "dynamo captured {name} for the last time, at its limit: a call that needs another "
    "capture will run as it is, in full precision; give numbers that vary as tensors, "
    "or raise recompile_limit= of torch.compile and "
    "torch._dynamo.config.accumulated_recompile_limit"
)

SKIPPED = (
    "dynamo runs {name} as it is, because of a graph break inside of a loop, a with or "
    "a try of it: its own ops, and the layers of torch.nn that it calls, stay in full "
    "precision; move the break out of there, or use amprewrite.convert with args"
)


@dataclass
class Captured:
    """Captures of one call of ``torch.compile``.

    Attributes:
        plans: Their plans, without repetitions.
        skipped: Functions that dynamo gave up, which the user was warned of.
    """

    plans: list[Plan] = field(default_factory=list[Plan])
    skipped: set[CodeType] = field(default_factory=set[CodeType])

    def note(self, plan: Plan) -> None:
        """Add the plan of a graph."""
        if plan not in self.plans:
            self.plans.append(plan)


_CAPTURED: WeakKeyDictionary[Any, Captured] = WeakKeyDictionary()
"""Captures by dynamo's converter, which lives as long as the compiled callable."""


def current() -> Captured:
    """Return the captures to which the one that dynamo makes now belongs.

    Dynamo stops after eight captures of a function and runs it as it is; the limit is
    raised here, and there is a warning when that one is reached. There is one also for
    a function that dynamo gave up.
    """
    converter = compiling.current_converter()
    code = compiling.current_code()
    if converter is None or code is None:
        return Captured()
    held = _CAPTURED.setdefault(converter, Captured())
    compiling.set_apart(converter)
    compiling.capture_on(converter)
    if compiling.is_last_capture(converter):
        warn(LIMIT.format(name=_name(code)))
    for skipped in compiling.skipped_methods():
        if skipped not in held.skipped:
            held.skipped.add(skipped)
            warn(SKIPPED.format(name=_name(skipped)))
    return held


def _name(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def plan_of(model: object) -> Plan:
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
    if compiling.converters(model):
        msg = (
            f"this compiled {kind} has no plan: backend 'amprewrite' captured no graph "
            f"of it yet; call it once; want torch.compile(model, backend='amprewrite')"
        )
        raise NotCapturedError(msg)
    msg = (
        f"found a {kind} without a plan; want a result of amprewrite.convert, or of "
        f"torch.compile(model, backend='amprewrite')"
    )
    raise UnsupportedError(msg)


def lowerings_of(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Lowering, ...]:
    """Return the record of the lowering of a call's program; empty without one."""
    programs = programs_of(model)
    found = [model] if programs is None else programs.shared.programs
    for program in found:
        if not isinstance(program, ConvertedModule) or program.rewritten is None:
            continue
        if not program.path and program.takes(args, kwargs):
            return program.plan.lowerings
    return ()


def _plans(model: object) -> Iterator[Plan]:
    """Yield the plans of a model; if it has none itself, those of its parts."""
    programs = programs_of(model)
    own = getattr(model, "plan", None) if programs is None else programs.plan
    if isinstance(own, Plan):
        yield own
        return
    found = _captured(model)
    yield from found
    if not found and isinstance(model, nn.Module):
        for part in model.children():
            yield from _plans(part)


def _captured(model: object) -> list[Plan]:
    """Return the plans of the graphs that were captured of a compiled model."""
    return [plan for one in compiling.converters(model) for plan in _plans_by(one)]


def _plans_by(converter: object) -> Iterable[Plan]:
    try:
        found = _CAPTURED.get(converter)
    except TypeError:  # the part of a chain that is not hashable
        return ()
    return found.plans if found else ()
