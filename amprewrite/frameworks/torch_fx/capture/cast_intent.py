"""Tell pinned user casts from those that follow a dtype, by a second trace.

A trace in float32 has both ``x.float()`` and ``y.to(x.dtype)`` as casts to float32. In
a run with low parameters and inputs the first still returns float32, so it is pinned;
the second returns the low dtype, so it follows. Models without a cast to float32 need
no second run.

Nothing is computed in that run. One on meta tensors takes a tenth of one on fake
tensors (a Llama of 30 layers: a fifth of ``torch.export``), which can do more: they may
meet real tensors, and kernels that have no meta function of their own in C++.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import (
    argument,
    dtype_name,
    source_frame,
    source_line,
    user_frames,
)
from amprewrite.frameworks.torch_fx.capture.export import model_device
from amprewrite.frameworks.torch_fx.capture.warmup import copies
from amprewrite.frameworks.torch_fx.compat import (
    module_parts,
    operators,
    pytrees,
    settings,
    tensor_internals,
    threads,
)
from amprewrite.frameworks.torch_fx.compat.operators import FunctionMode
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.ir.graph import Chosen
from amprewrite.ops import op_table
from amprewrite.user_code import Line

FULL = torch.float32
"""The dtype of the parameters, buffers and inputs that are lowered."""

_META = torch.device("meta")

Lowered = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
"""Function of a tensor and a dtype that returns a stand-in for it, without values."""


def run_on_fake(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    low: torch.dtype,
) -> None:
    """Run a model with its float32 tensors in ``low``, on fake tensors.

    Errors of the model pass through.

    Args:
        model: The model; it is not changed.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
        low: The dtype.
    """
    mode = tensor_internals.fake_mode()

    def fake(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor_internals.faked(mode, value, dtype)

    args, kwargs = _lowered_arguments((args, kwargs), low, fake)
    with _on_stand_ins(model, low, fake), mode:
        model(*args, **kwargs)


def run_on_meta(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    low: torch.dtype,
) -> None:
    """Run a model with its float32 tensors in ``low``, on meta tensors.

    The code of the model sees the device that it is on. As :func:`run_on_fake`.
    """
    where = _Elsewhere(torch.device(model_device(model)))
    args, kwargs = _lowered_arguments((args, kwargs), low, _meta)
    with _on_stand_ins(model, low, _meta), torch.device("meta"), where:
        model(*args, **kwargs)


def _meta(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the same extents and strides.

    Raises:
        RuntimeError: The tensor has no strides.
    """
    return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=_META)


def _lowered_arguments(given: Any, low: torch.dtype, lowered: Lowered) -> Any:
    """Return copies of arguments with stand-ins for their tensors."""

    def stand_in(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return _lowered(value, low, lowered) if is_tensor else value

    args, kwargs = given
    return pytrees.pytree.tree_map(stand_in, (copies(args), copies(dict(kwargs))))


def _on_stand_ins(
    model: nn.Module, low: torch.dtype, lowered: Lowered
) -> AbstractContextManager[None]:
    """Put stand-ins in place of the tensors of a model, in the context."""

    def stand_in(_: str, value: torch.Tensor, __: type[Any]) -> torch.Tensor:
        return _lowered(value, low, lowered)

    return module_parts.in_place(model, stand_in)


def _lowered(value: torch.Tensor, low: torch.dtype, lowered: Lowered) -> torch.Tensor:
    made = lowered(value, low if value.dtype == FULL else value.dtype)
    is_parameter = isinstance(value, nn.Parameter)
    return nn.Parameter(made, requires_grad=False) if is_parameter else made


class _Elsewhere(FunctionMode):
    """Mode in which meta tensors are on a device for all code that asks.

    Attributes:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        kind, index = device.type, str(device).partition(":")[2]
        attributes: Any = torch.Tensor  # their getters are unknown to its stubs
        self._answers: dict[Any, object] = {
            attributes.device.__get__: device,
            attributes.is_meta.__get__: False,
            attributes.is_cpu.__get__: kind == "cpu",
            attributes.is_cuda.__get__: kind == "cuda",
            attributes.get_device: int(index or -1),
        }

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function on the meta device; answer questions about the device."""
        if function in self._answers:
            return self._answers[function]
        name = getattr(function, "__name__", "")
        if name in _MOVES:
            return args[0]
        if name == "to" and len(args) > 1 and isinstance(args[1], str):
            args = args[0], torch.device(args[1]), *args[2:]
        args = tuple(_on_meta(arg) for arg in args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _META}
        return function(*args, **kwargs)


_MOVES = frozenset(("cpu", "cuda"))
"""Methods named after the device that they move to."""


def _on_meta(arg: Any) -> Any:
    return _META if isinstance(arg, torch.device) else arg


CHOSEN = "amprewrite_chosen"
"""Metadata key of a node: how the model chose the dtype that the node names."""

NAMED = frozenset(("bfloat16", "double", "float", "half"))
"""Tensor methods named after the dtype that they cast to."""

CASTS = NAMED | {"to", "type"}
"""Tensor methods that ATen records as a cast to an explicit dtype."""

Site = tuple[Line, str]
"""A line of the user's code, and the function called there."""


def tell_casts(
    module: GraphModule,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    low: torch.dtype,
) -> Iterator[str]:
    """Record on every node that names float32 how the model chose it, if known.

    Yields:
        A warning for the user: ambiguous casts, because the second run stopped.

    Args:
        module: The capture of ``model``.
        model: The model; it is not changed.
        args: Positional call arguments of the capture.
        kwargs: Keyword call arguments.
        low: Dtype of the second run.
    """
    named: dict[Site, list[Node]] = defaultdict(list)
    for node in _nodes(module):
        if (site := _site(node, low)) is not None:
            named[site].append(node)
    doubtful = {s: nodes for s, nodes in named.items() if any(map(_is_full, nodes))}
    if not doubtful:
        return
    for run in (run_on_meta, run_on_fake):  # the second can run more
        recorder = _Recorder(low)
        with _second_run(recorder, model):
            run(model, args, kwargs, low)
        if not recorder.stopped or recorder.is_planned:
            break
    unknown = [
        source_line(nodes[0])
        for site, nodes in doubtful.items()
        if not _tell(nodes, recorder.chosen[site], whole=not recorder.stopped)
    ]
    if unknown and recorder.stopped and not recorder.is_planned:
        yield (
            f"the casts to float32 at {', '.join(unknown[:3])} are taken as meant: a "
            f"second trace in {dtype_name(low)}, which shows those that follow the "
            f"model's dtype, does not tell: {recorder.stopped}"
        )


def _nodes(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes in the order in which they run, also inside bodies."""
    for node in module.graph.nodes:
        for arg in node.all_input_nodes if node.op == "call_function" else ():
            part = getattr(module, str(arg.target), None) if arg.op == "get_attr" else 0
            if isinstance(part, GraphModule):
                yield from _nodes(part)
        yield node


def _tell(nodes: list[Node], seen: list[Chosen], *, whole: bool) -> bool:
    """Record on the nodes of one line the observed choices; return if all are known.

    Args:
        nodes: The nodes, in program order.
        seen: Observed choices, in the order of the calls.
        whole: Whether the second run completed.
    """
    if whole and len(set(seen)) == 1:  # the same in each iteration or layer
        seen = seen[:1] * len(nodes)
    if whole and len(seen) != len(nodes):
        return False
    for node, chosen in zip(nodes, seen, strict=False):
        if _is_full(node):
            node.meta[CHOSEN] = chosen
    return len(seen) >= len(nodes)


def _is_full(node: Node) -> bool:
    return node.meta["val"].dtype == FULL


def _site(node: Node, low: torch.dtype) -> Site | None:
    """Return the site where a node names float32, explicitly or by another tensor.

    Nodes that name the low dtype count too: they appear in the second run as well.
    """
    val = node.meta.get("val")
    is_either = isinstance(val, torch.Tensor) and val.dtype in (FULL, low)
    if not is_either or not operators.is_overload(node.target):
        return None
    is_cast = ops.canonical_name(node) == "cast"
    if is_cast and ops.names_tensor(node):
        return None
    if not is_cast and argument(node, "dtype") not in (FULL, low):
        return None
    frame = source_frame(node)
    called = "cast" if is_cast else ops.packet_name(node.target)
    return None if frame is None else (frame, called)


@dataclass
class _Recorder(operators.FunctionMode):
    """Mode that records, for each call that names a dtype, its result's dtype."""

    low: torch.dtype
    chosen: dict[Site, list[Chosen]] = field(
        default_factory=lambda: defaultdict[Site, list[Chosen]](list)
    )
    stopped: str = ""
    is_planned: bool = False

    def __post_init__(self) -> None:
        """Initialise the base class."""
        super().__init__()

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; if it needs equal dtypes, with all operands in low."""
        name = getattr(function, "__name__", "")
        if _needs_equal(name):
            args, kwargs = self._equal((args, kwargs))
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and _names_dtype(name, args, kwargs):
            chosen: dict[torch.dtype, Chosen] = {self.low: "follows", FULL: "pinned"}
            frames = user_frames() if result.dtype in chosen else []
            for frame in frames:
                site = frame, "cast" if name in CASTS else name
                self.chosen[site].append(chosen[result.dtype])
        return result

    def _equal(self, given: Any) -> Any:
        """Return arguments of one float dtype: low, if low and full are mixed."""
        leaves = pytrees.pytree.tree_leaves(given)
        met = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if not met.issuperset((FULL, self.low)):
            return given

        def lower(arg: Any) -> Any:
            is_full = isinstance(arg, torch.Tensor) and arg.dtype == FULL
            return arg.to(self.low) if is_full else arg

        return pytrees.pytree.tree_map(lower, given)


def _needs_equal(name: str) -> bool:
    """Return whether a function of torch refuses operands of different float dtypes."""
    packet = name.strip("_")
    rule = OP_RULES.get(op_table().aten.get(packet, packet))
    return rule is not None and rule.needs_equal


def _names_dtype(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call sets the dtype of its result explicitly."""
    kinds = (torch.dtype, torch.Tensor) if name == "to" else torch.dtype
    others = (*args[1:], *kwargs.values())
    return name in NAMED or any(isinstance(arg, kinds) for arg in others)


@contextlib.contextmanager
def _second_run(recorder: _Recorder, model: nn.Module) -> Generator[None]:
    """Run the context's body under the recorder; casts after a failure stay ambiguous.

    A second run may fail where the first did not: the code may need a value, or a dtype
    that it names itself. Observations before the failure are kept.
    """
    quiet = settings.quiet()  # warnings about dtypes that no user chose
    exported = threads.as_if_exported()
    try:
        with undisturbed(model), quiet, exported, torch.no_grad(), recorder:
            yield
    except NotCapturedError as error:  # a converted part: its casts are those of a plan
        recorder.stopped, recorder.is_planned = str(error), True
    except Exception as error:  # noqa: BLE001  # the user's code, on unusual dtypes
        reason = str(error).strip().split("\n")[0]
        recorder.stopped = f"{type(error).__name__}: {reason}"
