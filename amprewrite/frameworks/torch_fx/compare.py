"""Run a torch model as its reference, as converted, and as it could be used instead."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amprewrite.errors import CaptureError, NotCapturedError
from amprewrite.frameworks.base import (
    CONVERTED,
    REFERENCE,
    Call,
    Measured,
    Observe,
    Run,
    Walked,
)
from amprewrite.frameworks.torch_fx._compat import pytree, register_caches
from amprewrite.frameworks.torch_fx.capture import open_program
from amprewrite.frameworks.torch_fx.convert import Request, capture
from amprewrite.frameworks.torch_fx.lockstep import (
    Lockstep,
    Walk,
    default_dtype,
    to_array,
    widen_bodies,
    widened,
)
from amprewrite.frameworks.torch_fx.named import named_tensors
from amprewrite.frameworks.torch_fx.read import Reading, dtype_name, read
from amprewrite.frameworks.torch_fx.run import ConvertedModule, LazyModule
from amprewrite.frameworks.torch_fx.write import torch_dtype
from amprewrite.plan import Plan
from amprewrite.policy import load_policy

SCALE = 65536.0
"""Factor on the loss of models in float16, whose gradients would vanish without.

Source: the initial scale of torch.amp.GradScaler.
"""

REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError)
"""What kernels raise that do not take a dtype."""

Dtypes = Mapping[torch.dtype, torch.dtype]


def measure(original: Any, converted: Callable[..., Any], call: Call) -> Measured:
    """Run both models, and the original in the ways that a user has without us.

    The random state and the buffers of both stay as they were. What fails on the way to
    a baseline is recorded; the original and the converted model must run.
    """
    register_caches()
    root = _root(original)
    plan = _plan(converted)
    low = plan.low if plan is not None else "bfloat16"
    runner = _Runner(call, _devices(root, call))
    runner.scale = SCALE if low == "float16" else 1.0
    reference, dtype, notes = _reference(root, runner)
    runs = {REFERENCE: reference, CONVERTED: runner.run(converted, converted)}
    failures: dict[str, str] = {}
    for name, attempt in _baselines(root, runner, low):
        try:
            runs[name] = attempt()
        except Exception as error:  # noqa: BLE001  # a baseline's failure is a finding
            failures[name] = _first_line(error)
    if runner.random:
        notes.append(
            "the model draws random numbers; each run starts from the same seed, but "
            "kernels of other dtypes may draw others: call eval() to compare without"
        )
    return Measured(dtype, runs, failures, plan, low, tuple(notes))


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
    runner = _Runner(arranged, _devices(root, call))
    request = Request(load_policy("off"), args, kwargs, training=root.training)
    notes: list[str] = []
    for reference in dict.fromkeys((call.reference, "float32")):
        try:
            with runner.isolated(root), runner.isolated(converted):
                reading = read(capture(original, request).module)
                if not _is_same_program(reading, converted.plan):
                    note = "no errors by op: captured again it is another program"
                    return Walked(notes=(note,))
                dtypes = _wide(root, call, torch_dtype(reference))
                unmatched = _lockstep(reading, converted, runner, dtypes, observe)
        except (CaptureError, *REFUSALS) as error:
            notes.append(f"no errors by op in {reference}: {_first_line(error)}")
        else:
            notes += (f"{name} is not compared: other shapes" for name in unmatched)
            return Walked(reference, reading.graph, tuple(notes))
    return Walked(notes=tuple(notes))


def _is_same_program(reading: Reading, plan: Plan) -> bool:
    names = [(op.name, op.native) for op in reading.graph.ops]
    return names == [(decision.op, decision.native) for decision in plan.decisions]


def _lockstep(
    reading: Reading,
    converted: ConvertedModule,
    runner: "_Runner",
    dtypes: Dtypes,
    observe: Observe,
) -> list[str]:
    """Walk over both graphs; return the ops that could not be compared."""
    rewritten = converted.rewritten
    assert rewritten is not None
    widen_bodies(reading.module, dtypes)
    theirs, ours = (pytree.tree_leaves(runner.arguments(wide)) for wide in (dtypes, {}))
    steps = Lockstep(converted.plan.by_op, observe)
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


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _devices(root: nn.Module, call: Call) -> list[int]:
    """Return the CUDA devices whose random state may change."""
    held = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in held if isinstance(x, torch.Tensor)]
    found = (*tensors, *root.parameters(), *root.buffers())
    return sorted({tensor.device.index or 0 for tensor in found if tensor.is_cuda})


def _wide(root: nn.Module, call: Call, target: torch.dtype) -> Dtypes:
    """Return the float dtypes of the model and its inputs, each with ``target``."""
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    held = {x.dtype for x in (*root.parameters(), *root.buffers(), *tensors)}
    chosen = {torch.float32, *(d for d in held if d.is_floating_point)}
    bits = torch.finfo(target).bits
    return {dtype: target for dtype in chosen if torch.finfo(dtype).bits < bits}


@dataclass
class _Runner:
    """Runs models on copies of one set of arguments, from one random state."""

    call: Call
    devices: list[int]
    scale: float = 1.0
    random: bool = False

    def arguments(self, dtypes: Dtypes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a copy of the arguments, floats in other dtypes."""

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return copy.deepcopy(leaf)
            held = leaf.detach().to(dtypes.get(leaf.dtype, leaf.dtype), copy=True)
            return held.requires_grad_(leaf.requires_grad)

        return pytree.tree_map(convert, (self.call.args, dict(self.call.kwargs)))

    @contextmanager
    def isolated(self, model: object) -> Iterator[None]:
        """Leave the random state and the buffers of ``model`` as they are now."""
        buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
        before = [(buffer, buffer.clone()) for buffer in buffers]
        with torch.random.fork_rng(self.devices):
            state = torch.get_rng_state()
            states = [torch.cuda.get_rng_state(device) for device in self.devices]
            try:
                with torch.set_grad_enabled(self.call.gradients):
                    yield
            finally:
                now = [torch.cuda.get_rng_state(device) for device in self.devices]
                pairs = zip(
                    (state, *states), (torch.get_rng_state(), *now), strict=True
                )
                self.random |= not all(torch.equal(one, two) for one, two in pairs)
                with torch.no_grad():
                    for buffer, held in before:
                        buffer.copy_(held)

    def run(
        self, model: object, function: Callable[..., Any], dtypes: Dtypes | None = None
    ) -> Run:
        """Call ``function``, which runs ``model``, and return what it gave."""
        args, kwargs = self.arguments(dtypes or {})
        with self.isolated(model):
            found = dict(named_tensors(function(*args, **kwargs)))
            gradients = self._gradients(model, found) if self.call.gradients else {}
        floats = {n: t for n, t in found.items() if _is_inexact(t)}
        return Run(
            outputs={name: to_array(tensor) for name, tensor in floats.items()},
            dtypes={name: dtype_name(tensor.dtype) for name, tensor in floats.items()},
            others={
                name: tensor.detach().cpu().numpy()
                for name, tensor in found.items()
                if name not in floats
            },
            gradients=gradients,
        )

    def _gradients(self, model: object, found: Mapping[str, torch.Tensor]) -> Any:
        """Return the gradients of :func:`_loss` by parameter; zeros where it has none."""
        named = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
        held = {name: p for name, p in named.items() if p.requires_grad}
        loss = _loss(found)
        if loss is None or not held:
            return {}
        grads = torch.autograd.grad(
            loss * self.scale, list(held.values()), allow_unused=True
        )
        return {
            name: to_array(parameter.detach() * 0 if grad is None else grad)
            / self.scale
            for (name, parameter), grad in zip(held.items(), grads, strict=True)
        }


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _loss(found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the mean square distance of the float outputs to fixed random targets."""
    terms: list[torch.Tensor] = []
    for number, tensor in enumerate(found.values()):
        if tensor.is_floating_point() and tensor.requires_grad:
            draws = torch.Generator().manual_seed(number)
            target = torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
            terms.append((tensor.double() - target.to(tensor.device)).square().mean())
    return torch.stack(terms).sum() if terms else None


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
        given = kwargs or {}
        if func in self.methods:
            self.replaced += 1
            return args[0].to(self.methods[func])
        named = any(
            isinstance(x, torch.dtype) and x in self.dtypes
            for x in (*args, *given.values())
        )
        if (
            named and func is not torch.Tensor.view
        ):  # a view of another dtype reads bits
            self.replaced += 1
            args, given = widened(tuple(args), self.dtypes), widened(given, self.dtypes)
        return func(*args, **given)


def _reference(root: nn.Module, runner: _Runner) -> tuple[Run, str, list[str]]:
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
    with _full_float32(runner.devices):
        return (*_run_wide(root, runner, dtypes, notes), notes)


def _run_wide(
    root: nn.Module, runner: _Runner, dtypes: Dtypes, notes: list[str]
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
    """Bring parameters and buffers to other dtypes, in place."""
    model._apply(  # noqa: SLF001  # what .to() calls; it keeps ties
        lambda held: held.to(dtypes.get(held.dtype, held.dtype))
    )


@contextmanager
def _full_float32(devices: list[int]) -> Iterator[None]:
    """Let float32 products on CUDA be float32, not TF32."""
    if not devices:
        yield
        return
    before = torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        with flags.flags(
            enabled=flags.enabled,
            benchmark=flags.benchmark,
            deterministic=flags.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _baselines(
    root: nn.Module, runner: _Runner, low: str
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Yield what could be used instead: the original, autocast, every value low."""
    yield "original", partial(runner.run, root, root)
    if not low:
        return
    dtype = torch_dtype(low)
    yield "autocast", partial(_autocast, root, runner, dtype)
    yield "cast all", partial(_cast_all, root, runner, dtype)


def _autocast(root: nn.Module, runner: _Runner, dtype: torch.dtype) -> Run:
    device = "cuda" if runner.devices else "cpu"
    with torch.autocast(device, dtype):
        return runner.run(root, root)


def _cast_all(root: nn.Module, runner: _Runner, dtype: torch.dtype) -> Run:
    model = copy.deepcopy(root).to(dtype)
    floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return runner.run(model, model, dict.fromkeys(floats, dtype))
