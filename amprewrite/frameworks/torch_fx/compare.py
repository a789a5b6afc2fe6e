"""Run a torch model as its reference, as converted, and as it could be used instead."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amprewrite.errors import AmpError, CaptureError, NotCapturedError
from amprewrite.frameworks.torch_fx.aten.dtypes import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.capture.export import open_program
from amprewrite.frameworks.torch_fx.compat.private import pytree
from amprewrite.frameworks.torch_fx.compat.settings import register_caches
from amprewrite.frameworks.torch_fx.compat.threads import one_at_a_time
from amprewrite.frameworks.torch_fx.convert import capture
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.probes.lockstep import (
    Lockstep,
    Walk,
    default_dtype,
    widen_bodies,
    widened,
)
from amprewrite.frameworks.torch_fx.probes.runner import (
    Dtypes,
    Runner,
    check_values,
    devices_of,
    full_float32,
)
from amprewrite.frameworks.torch_fx.probes.sensitivity import measure_sensitivity
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.measure.run_names import CONVERTED, ORIGINAL, REFERENCE
from amprewrite.measure.runs import Call, Measured, Run
from amprewrite.measure.samples import Observe, Walked
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Sensitivity, probes_of

SCALE = 65536.0
"""Factor on the loss of models in float16, whose gradients would vanish without.

Source: the initial scale of torch.amp.GradScaler.
"""

REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""What kernels raise that do not take a dtype."""


@one_at_a_time
def measure(original: Any, converted: Callable[..., Any], call: Call) -> Measured:
    """Run both models, and the original in the ways that a user has without us.

    The random state and the buffers of both stay as they were. What fails on the way to
    a baseline is recorded; the original and the converted model must run.

    Raises:
        UnsupportedError: The model or its arguments have no values.
    """
    register_caches()
    root = _root(original)
    plan = _plan(converted)
    low = plan.low if plan is not None else "bfloat16"
    check_values("verify", root, call)
    runner = Runner(call, devices_of(root, call))
    runner.scale = SCALE if low == "float16" else 1.0
    reference, dtype, notes = _reference(root, runner)
    runs = {REFERENCE: reference, CONVERTED: runner.run(converted, converted)}
    failures: dict[str, str] = {}
    for name, attempt in _baselines(root, runner, low):
        try:
            runs[name] = attempt()
        except Exception as error:  # noqa: BLE001  # a baseline's failure is a finding
            failures[name] = _first_line(error)
    if call.gradients and plan is not None and (plan.storage or _has_copies(plan)):
        notes.append(
            "converted for inference: weights are stored low, and gradients do not "
            "reach those that have a second copy; convert with training=True to train"
        )
    if runner.random:
        notes.append(
            "the model draws random numbers; each run starts from the same seed, but "
            "kernels of other dtypes may draw others: call eval() to compare without"
        )
    return Measured(dtype, runs, failures, plan, low, tuple(notes))


@one_at_a_time
def walk(original: Any, converted: Any, call: Call, observe: Observe) -> Walked:
    """Compare every op of a converted module with the original's.

    Where an op does not run in the dtype of the reference, the walk is begun again in
    float32.

    Args:
        original: The model.
        converted: What ``convert`` made of it.
        call: Arguments; the reference dtype.
        observe: Takes a sample of each op; that of the last walk counts.
    """
    if not isinstance(converted, ConvertedModule) or converted.rewritten is None:
        lazy = isinstance(converted, LazyModule)
        what = (
            "a module captured by torch.compile" if lazy else type(converted).__name__
        )
        note = f"no errors by op: {what} has no graph of the whole model"
        return Walked(notes=(note,))
    root = _root(original)
    args, kwargs = converted.arranged(call.args, call.kwargs)
    arranged = replace(call, args=args, kwargs=kwargs, gradients=False)
    runner = Runner(arranged, devices_of(root, call))
    notes: list[str] = []
    found: Sensitivity | None = None
    for reference in dict.fromkeys((call.reference, "float32")):
        try:
            with runner.isolated(root), runner.isolated(converted):
                reading = read(capture(original, args, kwargs).module)
                if not _is_same_program(reading, converted.plan):
                    note = "no errors by op: captured again it is another program"
                    return Walked(notes=(note,))
                if reference == call.reference:
                    found = _sensitivity(reading, converted.plan, runner, notes)
                dtypes = _wide(root, call, torch_dtype(reference))
                unmatched = _lockstep(reading, converted, runner, dtypes, observe)
        except (CaptureError, *REFUSALS) as error:
            notes.append(f"no errors by op in {reference}: {_first_line(error)}")
        else:
            notes += (f"{name} is not compared: other shapes" for name in unmatched)
            return Walked(reference, reading.graph, tuple(notes), found)
    return Walked(notes=tuple(notes))


def _sensitivity(
    reading: Reading, plan: Plan, runner: Runner, notes: list[str]
) -> Sensitivity | None:
    """Return how far the roundings of a plan move the outputs, if that can be had."""
    if not plan.lowered:
        return None
    probes = probes_of(plan, reading.graph)
    inputs = pytree.tree_leaves(runner.arguments({}))
    try:
        with full_float32(runner.devices):
            return measure_sensitivity(reading, probes, inputs, _relative)
    except (AmpError, *REFUSALS) as error:
        notes.append(f"no predicted error: {_first_line(error)}")
        return None


def _relative(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the factors that make the error of each output relative to its norm."""
    wide = {name: tensor.detach().double() for name, tensor in outputs.items()}
    sizes = {name: float((x * x).sum().sqrt()) for name, x in wide.items()}
    return {name: 1 / size for name, size in sizes.items() if 0.0 < size < inf}


def _is_same_program(reading: Reading, plan: Plan) -> bool:
    """Whether the ops that make tensors are those of the plan.

    Extents that vary are computed by ops that a capture with fixed ones does not have.
    """
    names = [(op.name, op.native) for op in reading.graph.ops if op.results]
    return names == [(d.op, d.native) for d in plan.decisions if d.results]


def _lockstep(
    reading: Reading,
    converted: ConvertedModule,
    runner: Runner,
    dtypes: Dtypes,
    observe: Observe,
) -> list[str]:
    """Walk over both graphs; return the ops that could not be compared."""
    rewritten = converted.rewritten
    assert rewritten is not None
    widen_bodies(reading.module, dtypes)
    theirs = pytree.tree_leaves(runner.arguments(dtypes))
    ours = pytree.tree_leaves(runner.arguments({}))
    plan, ops = converted.plan, reading.graph.ops
    steps = Lockstep(
        plan.by_op,
        observe,
        {op.name for op in ops if op.contracted is not None},
        torch.finfo(torch_dtype(plan.low)).max if plan.low else inf,
    )
    steps.walk(
        Walk(converted, rewritten.graph, ours, {}),
        Walk(reading.module, reading.module.graph, theirs, dtypes),
    )
    return steps.unmatched


def _root(original: Any) -> nn.Module:
    return original if isinstance(original, nn.Module) else open_program(original)


def _plan(converted: object) -> Plan | None:
    try:
        return converted.plan if isinstance(converted, ConvertedModule) else None
    except NotCapturedError:
        return None


def _has_copies(plan: Plan) -> bool:
    return any(cast.folding == "copy" for cast in plan.casts)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _wide(root: nn.Module, call: Call, target: torch.dtype) -> Dtypes:
    """Return the float dtypes of the model and its inputs, each with ``target``."""
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    held = {x.dtype for x in (*root.parameters(), *root.buffers(), *tensors)}
    chosen = {torch.float32, *(d for d in held if d.is_floating_point)}
    bits = torch.finfo(target).bits
    return {dtype: target for dtype in chosen if torch.finfo(dtype).bits < bits}


class _Widen(TorchFunctionMode):
    """Runs a model in wider dtypes, also where it names its own."""

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.replaced = 0
        target = dtypes.get(torch.float32)
        self.methods = {torch.Tensor.float: target} if target is not None else {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given: dict[str, Any] = kwargs or {}
        if func in self.methods:
            self.replaced += 1
            return args[0].to(self.methods[func])
        held: tuple[Any, ...] = (*args, *given.values())
        named = any(isinstance(x, torch.dtype) and x in self.dtypes for x in held)
        reads_bits = func is torch.Tensor.view
        if named and not reads_bits:
            self.replaced += 1
            args, given = widened(tuple(args), self.dtypes), widened(given, self.dtypes)
        return func(*args, **given)


def _reference(root: nn.Module, runner: Runner) -> tuple[Run, str, list[str]]:
    """Return the reference run, its dtype, and what is to be said about it."""
    wanted = runner.call.reference
    dtypes = _wide(root, runner.call, torch_dtype(wanted))
    notes: list[str] = []
    if wanted != "float32":
        try:
            return (*_run_wide(root, runner, dtypes, notes), notes)
        except Exception as error:  # noqa: BLE001  # any failure of the model itself
            notes.append(
                f"the reference is float32: the model does not run in {wanted} "
                f"({_first_line(error)})"
            )
    dtypes = _wide(root, runner.call, torch.float32)
    with full_float32(runner.devices):
        return (*_run_wide(root, runner, dtypes, notes), notes)


def _run_wide(
    root: nn.Module, runner: Runner, dtypes: Dtypes, notes: list[str]
) -> tuple[Run, str]:
    if not dtypes:
        return runner.run(root, root), "float32"
    target = next(iter(dtypes.values()))
    model = copy.deepcopy(root)
    _convert(model, dtypes)
    mode = _Widen(dtypes)
    with mode, default_dtype(dtypes.get(torch.get_default_dtype(), target)):
        run = runner.run(model, model, dtypes)
    if mode.replaced:
        notes.append(
            f"the model names a float dtype in {mode.replaced} calls; in the reference "
            f"they are {dtype_name(target)}"
        )
    return run, dtype_name(target)


def _convert(model: nn.Module, dtypes: Dtypes) -> None:
    """Bring parameters and buffers to other dtypes, in place; ties stay."""
    for held in (*model.parameters(), *model.buffers()):
        held.data = held.data.to(dtypes.get(held.dtype, held.dtype))
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # its kernels want the weights in one piece


def _baselines(
    root: nn.Module, runner: Runner, low: str
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Yield what could be used instead: the original, autocast, every value low."""
    yield ORIGINAL, partial(runner.run, root, root)
    if not low:
        return
    dtype = torch_dtype(low)
    yield "autocast", partial(_autocast, root, runner, dtype)
    yield "cast all", partial(_cast_all, root, runner, dtype)


def _autocast(root: nn.Module, runner: Runner, dtype: torch.dtype) -> Run:
    device = "cuda" if runner.devices else "cpu"
    with torch.autocast(device, dtype):
        return runner.run(root, root)


def _cast_all(root: nn.Module, runner: Runner, dtype: torch.dtype) -> Run:
    model = copy.deepcopy(root).to(dtype)
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return runner.run(model, model, dict.fromkeys(floats, dtype))
