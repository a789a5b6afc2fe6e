"""Run a torch model as its reference, as converted, and as baselines."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn

from amprewrite.errors import CaptureError, NotCapturedError
from amprewrite.execute.sensitivity import FAILURES
from amprewrite.frameworks.torch_fx.aten.ops import dtype_name, torch_dtype
from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.capture.program import open_program
from amprewrite.frameworks.torch_fx.compat.operators import FunctionMode
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import register_caches
from amprewrite.frameworks.torch_fx.compat.threads import one_at_a_time
from amprewrite.frameworks.torch_fx.derived.classes import programs_of
from amprewrite.frameworks.torch_fx.executor import (
    Executor,
    default_dtype,
    named_outputs,
    widen_bodies,
    widened,
)
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.module.lazy_module import LazyModule
from amprewrite.frameworks.torch_fx.module.snapshot import deep_copy
from amprewrite.frameworks.torch_fx.probes.emulated_products import (
    InFloat32,
    current_products,
    shared,
    sharing,
)
from amprewrite.frameworks.torch_fx.probes.lockstep import Lockstep
from amprewrite.frameworks.torch_fx.probes.runner import (
    Dtypes,
    Runner,
    check_values,
    devices_of,
    full_float32,
    run_of,
)
from amprewrite.frameworks.torch_fx.probes.sensitivity import measure_sensitivity
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.ir import ProgramGraph
from amprewrite.measure import JITTED, ORIGINAL
from amprewrite.measure.compare import Steps, compare, loss_scale
from amprewrite.measure.compare import walk as walk_both
from amprewrite.measure.runs import Call, Measured, Observe, Run, Stepped, Walked
from amprewrite.plan import Plan
from amprewrite.plan.sensitivity import Probes, Sensitivity


class Widen(FunctionMode):
    """Mode that runs a model in wider dtypes, also where it names a dtype.

    Attributes:
        replaced: Number of calls that name a dtype.
    """

    def __init__(self, dtypes: Dtypes) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.replaced: int = 0
        target = dtypes.get(torch.float32)
        self.methods = {torch.Tensor.float: target} if target is not None else {}

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a call, in wider dtypes."""
        if not self.names_dtype(function, (*args, *kwargs.values())):
            return function(*args, **kwargs)
        self.replaced += 1
        if function in self.methods:
            return args[0].to(self.methods[function])
        return function(*widened(args, self.dtypes), **widened(kwargs, self.dtypes))

    def names_dtype(self, function: Any, operands: tuple[Any, ...]) -> bool:
        """Return whether a call names a dtype that is replaced."""
        if function in self.methods:
            return True
        named = any(isinstance(x, torch.dtype) and x in self.dtypes for x in operands)
        return named and function is not torch.Tensor.view  # it reads bits


class Counted(Widen):
    """Mode that counts the calls that the other one changes."""

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a call; count it if it names a dtype."""
        self.replaced += self.names_dtype(function, (*args, *kwargs.values()))
        return function(*args, **kwargs)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, of which the calls are counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return counted


def run_wide(root: nn.Module, runner: Runner, dtypes: Dtypes) -> tuple[Run, list[str]]:
    """Return the run of a model in wider dtypes, and notes about it."""
    if not dtypes:
        return runner.run(root, root), []
    target = next(iter(dtypes.values()))
    model = deep_copy(root, {})
    _convert(model, dtypes)
    mode = Widen(dtypes)
    with mode, default_dtype(dtypes.get(torch.get_default_dtype(), target)):
        run = runner.run(model, model, dtypes, owned=True)
    return run, named_dtypes(mode.replaced, target)


def named_dtypes(calls: int, target: torch.dtype) -> list[str]:
    """Return the note that a model names float dtypes, if it does.

    Args:
        calls: Number of calls that name one.
        target: The dtype that they got in the reference.
    """
    if not calls:
        return []
    note = (
        f"the model names a float dtype in {calls} calls; in the reference they are "
        f"{dtype_name(target)}"
    )
    return [note]


def _convert(model: nn.Module, dtypes: Dtypes) -> None:
    """Convert parameters and buffers to other dtypes, in place; ties are kept."""
    for held in (*model.parameters(), *model.buffers()):
        held.data = held.data.to(dtypes.get(held.dtype, held.dtype))
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # its kernels want the weights in one piece


def wide_dtypes(root: nn.Module, call: Call, target: torch.dtype) -> Dtypes:
    """Return the float dtypes of the model and its inputs, each with ``target``."""
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    held = {x.dtype for x in (*root.parameters(), *root.buffers(), *tensors)}
    chosen = {torch.float32, *(d for d in held if d.is_floating_point)}
    bits = torch.finfo(target).bits
    return {dtype: target for dtype in chosen if torch.finfo(dtype).bits < bits}


NOTED = "float64"
"""Dtype of a reference for which a run of the original gives the notes."""

REFUSALS = (CaptureError, *FAILURES)
"""Exceptions of a capture that fails, and of kernels that do not take a dtype."""

LOW_WEIGHTS = (
    "converted for inference: weights are stored low, and gradients do not reach those "
    "that have a second copy; convert with training=True to train"
)
RANDOM = (
    "the model draws random numbers; each run starts from the same seed, but kernels "
    "of other dtypes may draw others: call eval() to compare without"
)
RANDOM_COMPILED = (
    "the converted model is not compared compiled: the compiler draws other random "
    "numbers"
)
"""Notes for the user."""


@one_at_a_time
def measure(
    original: Any,
    converted: Callable[..., Any],
    call: Call,
    steps: Steps | None = None,
) -> Measured:
    """Run both models, and the original as each baseline.

    The random state and the buffers of both are restored. The failure of a baseline is
    recorded; the original and the converted model must run.

    Args:
        original: The model.
        converted: The converted model.
        call: Arguments, reference dtype, whether gradients are compared.
        steps: Calls :func:`walk`; None for no walk.

    Raises:
        UnsupportedError: The model or its arguments have no values.
    """
    register_caches()
    converted = program_of(converted, call)
    root, plan = root_of(original), _plan(converted)
    check_values("verify", root, call)
    runner = Runner(call, devices_of(root, call), loss_scale(plan), inputs=True)
    source = _Measurer(root, converted, runner, plan)
    if steps is None or source.whole is None:
        return compare(source, call.reference, steps)
    with sharing(sum(p.numel() for p in root.parameters())):
        return compare(source, call.reference, steps)


@dataclass
class _Measurer:
    """Runner of a model and its converted form.

    Attributes:
        root: The model.
        other: Its converted form.
        runner: Runs both.
        plan: The plan of the converted form.
        named: Number of calls in which the original names a float dtype, of its run;
            None if they cannot be counted.
    """

    root: nn.Module
    other: Callable[..., Any]
    runner: Runner
    plan: Plan | None
    model: str = "model"
    named: list[int | None] = field(default_factory=list[int | None])

    def reference(self, dtype: str) -> tuple[Run, list[str]]:
        dtypes = wide_dtypes(self.root, self.runner.call, torch_dtype(dtype))
        with full_float32(self.runner.devices if dtype == "float32" else []):
            return run_wide(self.root, self.runner, dtypes)

    def converted(self) -> Run:
        if not self._is_compiled:
            with shared():
                return self.runner.run(self.other, self.other)
        with torch.compiler.set_stance("force_eager"):
            return self.runner.run(self.other, self.other)

    def compiled(self) -> Run | None:
        """Run the model as it is if it was compiled in place."""
        if not self._is_compiled or self.runner.random:
            return None
        return self.runner.run(self.other, self.other)

    def baselines(self, low: str) -> Mapping[str, Callable[[], Run]]:
        """Return the original, autocast, every value low, and a compiled run.

        The last is for a plan that is made for a compiler: there may be none here.
        """
        root, runner = self.root, self.runner
        found: dict[str, Callable[[], Run]] = {ORIGINAL: self._original}
        if self._is_for_compiler and not self._is_compiled and not runner.random:
            found[JITTED] = partial(_compiled, self.other, runner)
        if low:
            dtype = torch_dtype(low)
            found["autocast"] = partial(_autocast, root, runner, dtype)
            found["cast all"] = partial(_cast_all, root, runner, dtype)
        return found

    def notes(self) -> list[str]:
        notes: list[str] = []
        plan = self.plan
        if self.runner.call.gradients and plan is not None:
            copied = any(cast.folding == "copy" for cast in plan.casts)
            notes += [LOW_WEIGHTS] if plan.storage or copied else []
        if self.runner.random:
            notes += [RANDOM, *([RANDOM_COMPILED] if self._is_for_compiler else [])]
        return notes

    @property
    def shares_reference(self) -> bool:
        call = self.runner.call
        if call.gradients or self.runner.random or None in self.named:
            return False
        return call.reference == NOTED

    def noted(self, dtype: str) -> list[str]:
        return named_dtypes(self.named[-1] or 0, torch_dtype(dtype))

    def _original(self) -> Run:
        """Run the original as it is, and count the calls in which it names a dtype."""
        root, runner = self.root, self.runner
        if not self.shares_reference:
            return runner.run(root, root)
        mode = Counted(wide_dtypes(root, runner.call, torch_dtype(NOTED)))
        try:
            run = runner.run(root, mode.around(root))
        except Exception:  # noqa: BLE001  # its own, or one of the mode: it runs without
            self.named.append(None)
            return runner.run(root, root)
        self.named.append(mode.replaced)
        return run

    @property
    def whole(self) -> ConvertedModule | None:
        """The converted form, if it is a module of one graph."""
        if not isinstance(self.other, ConvertedModule) or self.other.rewritten is None:
            return None
        return self.other

    @property
    def _is_compiled(self) -> bool:
        """Whether the converted form is one graph that was compiled in place."""
        return self.whole is not None and self.whole.is_compiled

    @property
    def _is_for_compiler(self) -> bool:
        """Whether the converted form is one graph that is to run compiled."""
        planned = self.plan is not None and self.plan.target == "compiled"
        return self.whole is not None and (planned or self._is_compiled)


def _compiled(model: Callable[..., Any], runner: Runner) -> Run:
    """Run a model compiled as a whole, and leave it as it is."""
    untyped: Any = torch
    return runner.run(model, untyped.compile(model))


@one_at_a_time
def walk(original: Any, converted: Any, call: Call, observe: Observe) -> Walked:
    """Compare every op of a converted module with the original's.

    Args:
        original: The model.
        converted: The converted model.
        call: Arguments; the reference dtype.
        observe: Receives a sample of each op; those of the last walk count.
    """
    return walk_both(walker_of(original, converted, call), call.reference, observe)


def walker_of(original: Any, converted: Any, call: Call) -> "Walker | str":
    """Return both forms of a model, or why they are not run side by side.

    Args:
        original: The model.
        converted: The converted model.
        call: The arguments.
    """
    converted = program_of(converted, call)
    if isinstance(converted, ConvertedModule) and converted.rewritten is not None:
        return Walker(original, converted, call)
    lazy = isinstance(converted, LazyModule)
    what = "a module captured by torch.compile" if lazy else type(converted).__name__
    return f"{what} has no graph of the whole model"


class Walker:
    """A model and its converted form, to be run side by side.

    Args:
        original: The model.
        converted: Its converted form.
        call: The arguments.
    """

    refusals: tuple[type[Exception], ...] = REFUSALS

    def __init__(self, original: Any, converted: ConvertedModule, call: Call) -> None:
        """Arrange the arguments as at the capture."""
        self.original, self.converted, self.call = original, converted, call
        args, kwargs = converted.arranged(call.args, call.kwargs)
        arranged = replace(call, args=args, kwargs=kwargs, gradients=False)
        self.root, self.plan = root_of(original), converted.plan
        self.runner = Runner(arranged, devices_of(self.root, call))
        self.reading: Reading | None = None

    def isolated(self) -> AbstractContextManager[None]:
        """Keep the state of both forms while the context is entered."""
        program = self.converted.rewritten
        return self.runner.isolated(self.root, self.converted, program=program)

    def read(self) -> ProgramGraph | str:
        """Capture the original again: each walk changes the dtypes of its graph."""
        call = self.runner.call
        module = capture(self.original, call.args, call.kwargs).module
        self.reading = read(module)
        if not is_same_program(self.reading, self.plan):
            return "captured again it is another program"
        return self.reading.graph

    def sensitivity(self, probes: Probes) -> Sensitivity:
        """Return the error of each rounding, relative to the norm of each output."""
        inputs = pytree.tree_leaves(self.runner.arguments({}))
        with full_float32(self.runner.devices):
            return measure_sensitivity(self.program, probes, inputs, _relative)

    def steps(self, dtype: str, observe: Observe) -> Stepped:
        """Run both forms, the original in ``dtype``."""
        dtypes = wide_dtypes(self.root, self.call, torch_dtype(dtype))
        found, made = _lockstep(
            self.program, self.converted, self.runner, dtypes, observe
        )
        notes = [f"{name} is not compared: other shapes" for name in found]
        return Stepped(notes, run_of(made))

    @property
    def program(self) -> Reading:
        """The original's program, which was read."""
        assert self.reading is not None
        return self.reading


def _relative(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the factors that make the error of each output relative to its norm."""
    wide = {name: tensor.detach().double() for name, tensor in outputs.items()}
    sizes = {name: float((x * x).sum().sqrt()) for name, x in wide.items()}
    return {name: 1 / size for name, size in sizes.items() if 0.0 < size < inf}


def is_same_program(reading: Reading, plan: Plan) -> bool:
    """Return whether the ops that make tensors are those of the plan.

    Varying extents are computed by ops that a capture with fixed ones does not have.
    """
    names = [(op.name, op.native) for op in reading.graph.ops if op.results]
    return names == [(d.op, d.native) for d in plan.decisions if d.results]


def _lockstep(
    reading: Reading,
    converted: ConvertedModule,
    runner: Runner,
    dtypes: Dtypes,
    observe: Observe,
) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Walk over both graphs.

    Returns:
        The ops that could not be compared, and the outputs of the original's graph.
    """
    rewritten = converted.rewritten
    assert rewritten is not None
    widen_bodies(reading.module, dtypes)
    graph = reading.module.graph
    exact = pytree.tree_leaves(runner.arguments(dtypes))
    theirs = Executor(reading.module, graph, exact, dtypes=dtypes)
    plan, ops = converted.plan, reading.graph.ops
    steps = Lockstep(
        theirs,
        plan.by_op,
        observe,
        {op.name for op in ops if op.contracted is not None},
        torch.finfo(torch_dtype(plan.low)).max if plan.low else inf,
        current_products(),
    )
    ours = pytree.tree_leaves(runner.arguments({}))
    Executor(converted, rewritten.graph, ours, steps).run()
    return steps.unmatched, named_outputs(graph, theirs.finish())


def program_of(converted: Any, call: Call) -> Any:
    """Return the program of a converted model for these arguments."""
    programs = programs_of(converted)
    if programs is None:
        return converted
    return programs.program_for(converted, call.args, call.kwargs)


def root_of(original: Any) -> nn.Module:
    """Return the module of a model or of an exported program."""
    return original if isinstance(original, nn.Module) else open_program(original)


def _plan(converted: object) -> Plan | None:
    try:
        return converted.plan if isinstance(converted, ConvertedModule) else None
    except NotCapturedError:
        return None


def _autocast(root: nn.Module, runner: Runner, dtype: torch.dtype) -> Run:
    device = "cuda" if runner.devices else "cpu"
    with torch.autocast(device, dtype), shared():
        return runner.run(root, root)


def _cast_all(root: nn.Module, runner: Runner, dtype: torch.dtype) -> Run:
    model = deep_copy(root, {}).to(dtype)
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    with InFloat32():
        return runner.run(model, model, dict.fromkeys(floats, dtype), owned=True)
