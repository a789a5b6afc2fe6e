"""Tell pinned user casts from those that follow a dtype, by a second trace.

A trace in float32 has both ``x.float()`` and ``y.to(x.dtype)`` as casts to float32. In
a run with low parameters and inputs the first still returns float32, so it is pinned;
the second returns the low dtype, so it follows. Nothing is computed, see
:mod:`amprewrite.frameworks.torch_fx.capture.low_run`; models without a cast to float32
need no second run.
"""

import contextlib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import NotCapturedError
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.names import (
    source_frame,
    source_line,
    user_frames,
)
from amprewrite.frameworks.torch_fx.aten.ops import argument, dtype_name
from amprewrite.frameworks.torch_fx.capture.low_run import run_on_fake, run_on_meta
from amprewrite.frameworks.torch_fx.compat import (
    operators,
    pytrees,
    settings,
    threads,
)
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.ir.graph import Chosen
from amprewrite.ops import op_table
from amprewrite.user_code import Line

CHOSEN = "amprewrite_chosen"
"""Metadata key of a node: how the model chose the dtype that the node names."""

FULL = torch.float32
"""The dtype of ambiguous casts: parameters and inputs of it are lowered."""

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
