"""Refuse arguments of dtypes that the model itself refuses, before conversion.

torch.export runs kernels on fake tensors, which accept operands of different dtypes
where real ones raise: the captured program may fail at its first call, at a cast that
was inserted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from amprewrite.dtypes import FORMATS, Behaviour, Rule, is_float
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import CaptureError
from amprewrite.frameworks.base import Request
from amprewrite.frameworks.torch_fx.capture.program import Captured
from amprewrite.frameworks.torch_fx.capture.warmup import has_values, try_run
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.ir import Op, ProgramGraph

_HALF = ("float16", "bfloat16")


def read_runnable(
    captured: Captured, request: Request, model: nn.Module, part: str = ""
) -> Reading:
    """Return the captured program, after checking that the arguments run through it.

    Args:
        captured: The program.
        request: The request, with the arguments.
        model: The model.
        part: Path of the model in the one of which it is a part.

    Raises:
        CaptureError: The model itself refuses the dtypes of its arguments.
    """
    reading = read(captured.module, part=part)
    if request.processor is None and request.has_arguments:
        args, kwargs = request.args or (), request.kwargs or {}
        refuse_unequal(reading.graph, model, args, kwargs)
    return reading


def refuse_unequal(
    graph: ProgramGraph,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Check that the model accepts the dtypes of its arguments.

    The model is called once, and only if some op has operands that torch refuses;
    arguments without values are judged by the rules of the ops alone.

    Args:
        graph: The model, captured on these arguments without promotion.
        model: The model.
        args: Positional call arguments.
        kwargs: Keyword call arguments.

    Raises:
        CaptureError: Names the op, the arguments that reach it, and their dtypes.
    """
    op = next((op for op in graph.ops if _refuses(graph, op)), None)
    if op is None:
        return
    reason = "torch refuses operands of these dtypes"
    if has_values(model, args, kwargs):
        try:
            try_run(model, model, args, kwargs)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise CaptureError(_message(graph, op, model, reason)) from error
        return
    raise CaptureError(_message(graph, op, model, reason))


def _refuses(graph: ProgramGraph, op: Op) -> bool:
    """Return whether the dtype rule of ``op`` says that torch refuses its operands."""
    rule = OP_RULES.get(op.canonical)
    if rule is None or op.fence or op.dtype_argument:
        return False
    dtypes = list(_read(graph, op, rule))
    if not dtypes:
        return False
    if rule.behaviour is Behaviour.MIXED:
        own, *others = dtypes
        wide = {own, "float32"} if own in _HALF else {own}
        return not wide.issuperset(others)
    whole = rule.floats and not any(map(_is_number_with_fraction, dtypes))
    return whole or (rule.needs_equal and len(set(dtypes)) > 1)


def _read(graph: ProgramGraph, op: Op, rule: Rule) -> Iterator[str]:
    """Yield the dtypes of the operands, without masks, indices and counts."""
    roles = rule.roles_of(len(op.operands))
    for name, role in zip(op.operands, roles, strict=True):
        dtype = graph.values[name].dtype
        if role != "-" and dtype in FORMATS:
            yield dtype


def _is_number_with_fraction(dtype: str) -> bool:
    return is_float(dtype) or dtype.startswith("complex")


def _message(graph: ProgramGraph, op: Op, model: nn.Module, reason: str) -> str:
    given = _inputs_above(graph, op)
    held = dict.fromkeys(
        value.dtype for value in graph.inputs("parameter", "buffer") if value.is_float
    )
    odd = {name: dtype for name, dtype in given.items() if dtype not in held}
    found = "; ".join(f"argument {name} is {d}" for name, d in (odd or given).items())
    params = f"the model's parameters are {', '.join(held)}" if held else ""
    place = ": ".join(part for part in (op.source, op.path, op.canonical) if part)
    want = next(iter(held), "one dtype")
    cast = f"x.to(torch.{want})" if held else "x.to(dtype)"
    return (
        f"{type(model).__name__} fails on these arguments: "
        f"{', '.join(part for part in (found, params) if part)}; at {place}: {reason}; "
        f"want arguments of {want}: cast them, {cast}, or convert with "
        f'policy="promote", which casts operands to one dtype'
    )


def _inputs_above(graph: ProgramGraph, op: Op) -> dict[str, str]:
    """Return the arguments that ``op`` depends on, with their dtypes."""
    seen, waiting = set[str](), list(op.operands)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            maker = graph.producer.get(name)
            waiting.extend(maker.operands if maker else ())
    return {v.name: v.dtype for v in graph.inputs("input") if v.name in seen}
