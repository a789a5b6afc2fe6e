"""Capture a model as an ATen-level graph with ``torch.export``.

One pass over the model under fake tensors: no weights are copied, nothing is run.
What export cannot capture faithfully goes the other way, through dynamo at the first
call (see :mod:`backend`); :func:`needs_dynamo` and :class:`CaptureError` tell which.
"""

import copy
import re
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch.fx import GraphModule, traceback
from torch.nn.parameter import is_lazy

from amprewrite.dtypes import Processor
from amprewrite.errors import CaptureError
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.rnn_cells import cells_written_out
from amprewrite.frameworks.torch_fx.capture.attributes import Attributes
from amprewrite.frameworks.torch_fx.capture.promotion_tracing import (
    PromotionRefused,
    promoting,
    take_out_promotions,
)
from amprewrite.frameworks.torch_fx.compat import private, settings, threads

WITHOUT_ARGS = (
    "convert without args may work: it captures at the first call, with breaks where a "
    "graph cannot go on"
)
"""What to do where export fails, and nothing else was tried."""

MACHINERY = (
    *("torch._library.", "torch._functorch.", "torch._higher_order_ops."),
    *("torch._dynamo.", "torch._export.", "torch._subclasses."),
)
"""Packages whose autograd functions stand for an op that a graph keeps whole, such as a
custom op with its own derivative; others are inlined, torch's own among them."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass
class Seen:
    """What the model was seen to use while it was captured.

    Attributes:
        functions: Names of custom ``autograd.Function`` classes; export inlines their
            forward and drops their backward.
        checkpoints: Number of activation checkpoints; export inlines them.
        hooks: Number of hooks on gradients; export drops them.
        written: Attributes that the forward writes; export takes them back.
        seeds: How often the forward seeds the random generator; export does so once,
            while it traces.
    """

    functions: list[str] = field(default_factory=list[str])
    checkpoints: int = 0
    hooks: int = 0
    written: list[str] = field(default_factory=list[str])
    seeds: int = 0

    def reason(self, *, training: bool) -> str:
        """Return why the capture is not faithful; empty if it is."""
        if self.written:
            names = ", ".join(self.written)
            return f"export does not write what forward writes to {names}"
        if self.seeds:
            return "export does not record that forward seeds the random generator"
        if not training:
            return ""
        if self.functions:
            return (
                f"export drops the backward of {', '.join(sorted(set(self.functions)))}"
            )
        if self.checkpoints:
            return "export removes activation checkpoints"
        return "export drops hooks on gradients" if self.hooks else ""


@dataclass
class Captured:
    """A private graph module, and what was seen while capturing.

    Attributes:
        module: The program.
        how: How it was captured, for the plan.
        seen: What the model uses.
        notes: What the user should know of the capture.
    """

    module: GraphModule
    how: str
    seen: Seen
    notes: tuple[str, ...] = ()


def model_device(model: torch.nn.Module) -> str:
    """Return the device type of the model's parameters and buffers.

    Raises:
        CaptureError: They are on several devices.
    """
    tensors = (*model.parameters(), *model.buffers())
    devices = sorted({str(t.device) for t in tensors})
    kinds = sorted({t.device.type for t in tensors if t.device.type != "meta"})
    if len(devices) > 1:
        msg = (
            f"model has tensors on {', '.join(devices)}; want one device; convert the "
            f"parts one by one, or move the model with .to(device)"
        )
        raise CaptureError(msg)
    return kinds[0] if kinds else "cpu"


@threads.one_at_a_time
def export_model(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any = None,
    processor: Processor | None = None,
    planned_for: str = "",
) -> Captured:
    """Return ``model`` captured for ``args`` and ``kwargs`` by torch.export.

    Gradients are on, so that the model's regions without them are seen. A model that
    autograd refuses there (a write to a part of a ``chunk``, an ``out=``) runs without
    gradients alone, and is captured so; unless it has autograd functions of its own,
    whose forward runs without gradients in a model that has them.

    Args:
        model: The model.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        dynamic_shapes: As ``torch.export.export`` takes them.
        processor: Promotes operands of different dtypes.
        planned_for: Kind of the device on which the program will run; empty for that of
            the model.

    Raises:
        CaptureError: Names the first line of the user's code that cannot be captured.
        PromotionError: Operands have no common dtype; names the line, too.
        ComplexTruncationError: An imaginary part would be dropped there.
    """
    given = (model, (args, kwargs, dynamic_shapes), processor, planned_for)
    seen = Seen()
    try:
        return _export(*given, seen)
    except CaptureError as error:
        if seen.functions or not _is_refused_by_autograd(error.__cause__):
            raise
        with suppress(CaptureError):  # then the first refusal says more
            return _export(*given, Seen(), gradients=False)
        raise


_AUTOGRAD = ("modified inplace", "in-place operation", "automatic differentiation")
"""Words by which autograd refuses an op whose operands need gradients.

Source: torch/csrc/autograd/VariableTypeUtils.h and variable.cpp (torch 2.13).
"""


def _is_refused_by_autograd(cause: BaseException | None) -> bool:
    return type(cause) is RuntimeError and any(w in str(cause) for w in _AUTOGRAD)


def _export(
    model: torch.nn.Module,
    given: tuple[tuple[Any, ...], Mapping[str, Any], Any],
    processor: Processor | None,
    planned_for: str,
    seen: Seen,
    *,
    gradients: bool = True,
) -> Captured:
    """Return ``model`` captured with gradients on or off; note what it uses.

    Raises:
        CaptureError: Names the first line of the user's code that cannot be captured.
        PromotionError: Operands have no common dtype; names the line, too.
        ComplexTruncationError: An imaginary part would be dropped there.
    """
    args, kwargs, dynamic_shapes = given
    args, kwargs = private.pytree.tree_map(_outside_inference, (args, dict(kwargs)))
    seen.hooks = sum(map(private.backward_hooks, model.modules()))
    device = model_device(model)
    settings.register_caches()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(settings.slow_attention_path())
        stack.enter_context(settings.plain_causal_hint())
        stack.enter_context(settings.inference_without_gradients())
        stack.enter_context(settings.unmarked((args, dict(kwargs))))
        stack.enter_context(cells_written_out(planned_for or device))
        stack.enter_context(_watch(seen))
        stack.enter_context(_watch_attributes(model, seen))
        stack.enter_context(promoting(processor))
        stack.enter_context(settings.distinct_casts())
        stack.enter_context(settings.regions_opened())
        stack.enter_context(threads.export_apart())
        # export's own advice about attributes it saw
        stack.enter_context(threads.silent())
        stack.enter_context(traceback.preserve_node_meta())  # marks
        try:
            program = torch.export.export(
                model, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
            )
        except PromotionRefused as refused:
            raise refused.reason_at(offending_line(refused)) from None
        except Exception as error:
            raise _capture_error(model, error) from error
    if private.uses_transforms(program.graph_module):
        msg = "torch.export leaves function transforms (vmap, grad) in the graph"
        raise CaptureError(msg)
    module = open_program(program)
    take_out_promotions(module)
    how = "captured by torch.export"
    return Captured(module, how if gradients else f"{how} without gradients", seen)


def open_program(program: torch.export.ExportedProgram) -> GraphModule:
    """Return the graph module of an exported program, without its run-time checks."""
    module = program.module(check_guards=False)
    drop_dtype_checks(module)
    return module


def open_graph(model: GraphModule) -> GraphModule:
    """Return a captured module with graphs of its own, without its run-time checks.

    Tensors are shared; a shallow copy would share the graph, and what is rewritten
    would be the user's.
    """
    kept = [t for part in model.modules() for t in vars(part).values()]
    held = (*kept, *model.parameters(), *model.buffers())
    shared = {id(t): t for t in held if isinstance(t, torch.Tensor)}
    module = copy.deepcopy(model, shared)
    for node in module.graph.find_nodes(op="call_module", target="_guards_fn"):
        module.graph.erase_node(node)
    drop_dtype_checks(module)
    return module


def drop_dtype_checks(module: GraphModule) -> None:
    """Erase assertions about the traced dtypes, which are about to change."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in list(part.graph.nodes):
                name = getattr(
                    getattr(node.target, "overloadpacket", None), "__name__", ""
                )
                if name in ops.FRAMEWORK_ONLY:
                    part.graph.erase_node(node)
            part.recompile()


def _outside_inference(value: Any) -> Any:
    """Return an argument as a tensor that autograd may record, if it is one."""
    if not _is_tensor(value) or not value.is_inference():
        return value
    with torch.inference_mode(mode=False):
        return value.clone()


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


@contextmanager
def _watch(seen: Seen) -> Generator[None]:
    """Note custom autograd functions and checkpoints while the model is traced."""

    def noted_function(kind: type) -> None:
        if kind.__name__ == "CheckpointFunction":
            seen.checkpoints += 1
        elif not kind.__module__.startswith(MACHINERY):
            seen.functions.append(kind.__name__)

    def noted_checkpoint() -> None:
        seen.checkpoints += 1

    def noted_hook(tensor: torch.Tensor, hook: Any) -> Any:
        seen.hooks += 1
        return register(tensor, hook)

    def noted_seed(seed: int) -> torch.Generator:
        seen.seeds += 1
        return manual_seed(seed)

    manual_seed: Any = vars(torch)["manual_seed"]
    register: Any = vars(torch.Tensor)["register_hook"]
    with (
        private.fork_rng([]),
        threads.replaced(torch, "manual_seed", noted_seed),
        threads.replaced(torch.random, "manual_seed", noted_seed),
        threads.replaced(torch.Tensor, "register_hook", noted_hook),
        settings.noting_functions(noted_function),
        settings.noting_checkpoints(noted_checkpoint),
    ):
        yield


@contextmanager
def _watch_attributes(model: torch.nn.Module, seen: Seen) -> Generator[None]:
    """Note what the forward leaves in attributes, and put them back.

    Export does so too, but for those that are new.
    """
    outside, before = Attributes.of(model), list[Attributes]()

    def enter(*_: object) -> None:
        before.append(Attributes.of(model))

    def leave(*_: object) -> None:
        seen.written = before.pop().names()

    hooks = (
        model.register_forward_pre_hook(enter, prepend=True),
        model.register_forward_hook(leave),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        outside.restore()


def _capture_error(model: torch.nn.Module, error: Exception) -> CaptureError:
    where = offending_line(error) or "the model"
    reason = str(error).strip().split("\n")[0]
    held = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    if any(t.is_inference() for t in held):
        reason = (
            "its tensors were made in torch.inference_mode(), where none has the "
            "record that a capture needs; make it outside and load its state_dict()"
        )
    return CaptureError(
        f"{type(model).__name__} cannot be captured by torch.export at {where}: "
        f"{reason}"
    )


def offending_line(error: BaseException) -> str:
    """Return the innermost line of code outside the framework, or an empty string."""
    frames: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = ("/torch/", "/amprewrite/", "contextlib.py", "/sympy/")
    users = [f for f in frames if not any(part in f[0] for part in own)]
    return f"{users[-1][0]}:{users[-1][1]}" if users else ""
