"""Trace a model of mixed dtypes with the operands of each op promoted.

Most ops of torch refuse operands of different dtypes, so that such a model cannot even
be captured. During the capture, every op's operands are cast to their common dtype by
the rules of a promotion system, and the graph marks these casts. They are removed again
before the graph is read: the plan then has them, with reasons, as any other cast.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from amprewrite.dtypes import Behaviour, Operand, Processor, Rule
from amprewrite.dtypes.op_rules import OP_RULES
from amprewrite.errors import AmpError, ComplexTruncationError, PromotionError
from amprewrite.frameworks.torch_fx.aten import ops
from amprewrite.frameworks.torch_fx.aten.ops import (
    argument,
    dtype_name,
    tensor_slots,
    torch_dtype,
    writes_first,
)
from amprewrite.frameworks.torch_fx.compat import pytrees, settings, tracing

READS = "amprewrite_reads"
"""Metadata key of a node: the dtypes in which it reads its operands."""

Cast = Callable[..., torch.Tensor]
"""Function that casts a tensor, marked in the graph unless ``written=True``."""

Writes = list[tuple[torch.Tensor, torch.Tensor]]
"""Pairs of a tensor, and the cast of it that an op writes to instead."""

STATISTICS = ("running_mean", "running_var")
"""Arguments of normalisations that are updated if the batch makes statistics."""

BY_BATCH = ("training", "use_input_stats")
"""Arguments that are true if the batch makes statistics."""


@dataclass
class Call:
    """A call of an operator that is being traced, with the interface of a node.

    Attributes:
        target: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        meta: Empty: the arguments are the values themselves.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    meta: dict[str, Any] = field(default_factory=dict[str, Any])


@contextmanager
def promoting(processor: Processor | None) -> Generator[None]:
    """Promote the operands of ops traced inside; None promotes nothing."""
    if processor is None:
        yield
        return
    promoter = _Promoter(processor)
    with tracing.before_each_op(promoter), settings.recurrent_inputs_cast():
        yield


class PromotionRefused(Exception):  # noqa: N818  # it carries an error, and is none
    """Carrier of an error out of the tracer, because operators hide a TypeError.

    Args:
        reason: The error.
    """

    def __init__(self, reason: PromotionError | ComplexTruncationError) -> None:
        """Store the error to carry."""
        super().__init__(str(reason))
        self.reason = reason

    def reason_at(self, line: str) -> AmpError:
        """Return the error, with the line of the user's code before its message."""
        return type(self.reason)(f"{line}: {self.reason}" if line else str(self.reason))


class _Promoter:
    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    def __call__(
        self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], cast: Cast
    ) -> tuple[tuple[Any, ...], Mapping[str, Any], Writes]:
        """Return the arguments of a call, cast to the computing dtype of the op.

        Statistics that it updates are cast too, and their casts written back: kernels
        need them in the dtype of the parameters, and a state keeps its own.

        Raises:
            PromotionRefused: Carries the error: there is no common dtype, or an
                imaginary part would be dropped.
        """
        call = Call(target, args, kwargs)
        name = ops.canonical_name(call)
        try:
            wanted = dict(self._wanted(call, name))
        except (PromotionError, ComplexTruncationError) as error:
            raise PromotionRefused(error) from error
        if not wanted:
            return args, kwargs, []
        states = {id(argument(call, each)) for each in STATISTICS}
        written: Writes = []
        flags = (argument(call, each) for each in BY_BATCH)
        is_updating = any(flag is True for flag in flags)

        def apply(arg: Any) -> Any:
            dtype = wanted.get(id(arg)) if isinstance(arg, torch.Tensor) else None
            if dtype is None:
                return arg
            if not is_updating or id(arg) not in states:
                return cast(arg, torch_dtype(dtype))
            made = cast(arg, torch_dtype(dtype), written=True)
            written.append((arg, made))
            return made

        changed = pytrees.pytree.tree_map(apply, (args, dict(kwargs)))
        return *changed, written

    def _wanted(self, call: Call, name: str) -> Iterator[tuple[int, str]]:
        """Yield the tensors to cast, by identity, and their new dtypes."""
        slots = list(tensor_slots(call))
        tensors = [slot for slot in slots if isinstance(slot, torch.Tensor)]
        rule = OP_RULES.get(name)
        if rule is None or len({tensor.dtype for tensor in tensors}) <= 1:
            return
        rule = _written(rule) if writes_first(call) else rule
        roles = rule.roles_of(len(slots))
        used = [
            (slot, role)
            for slot, role in zip(slots, roles, strict=True)
            if isinstance(slot, torch.Tensor)
        ]
        if not any(role == "x" for _, role in used):
            return
        rule = replace(rule, roles="".join(role for _, role in used))
        operands = [_operand(tensor) for tensor, _ in used]
        in_place = rule.behaviour is Behaviour.FOLLOW_SELF
        try:
            found = self.processor.apply(rule, *operands, in_place=in_place)
        except (PromotionError, ComplexTruncationError) as error:
            raise type(error)(f"{name}: {error}") from None
        for (tensor, _), dtype in zip(used, found.casts, strict=True):
            if dtype is not None:
                yield id(tensor), dtype
        mask: Any = argument(call, "attn_mask")
        is_added = isinstance(mask, torch.Tensor) and mask.is_floating_point()
        if is_added and dtype_name(mask.dtype) != found.computes:
            yield id(mask), found.computes


def _operand(tensor: torch.Tensor) -> Operand:
    return Operand(dtype_name(tensor.dtype), ndim=tensor.ndim)


def _written(rule: Rule) -> Rule:
    """Return the rule of the in-place form: the first operand sets the dtype."""
    behaviour = Behaviour.FOLLOW_SELF if rule.needs_equal else Behaviour.PRESERVE
    return replace(rule, behaviour=behaviour, equal=True)


def take_out_promotions(module: GraphModule) -> None:
    """Erase the casts marked by :func:`promoting`, recording them at their readers."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in list(part.graph.nodes):
            if tracing.is_promotion(node):
                _take_out(node)
        part.recompile()


def _take_out(node: Node) -> None:
    source, dtype = node.args[0], dtype_name(node.meta["val"].dtype)
    if not isinstance(source, Node):
        msg = f"{node} casts {source!r}, which is no value of the graph"
        raise TypeError(msg)
    for user in node.users:
        user.meta.setdefault(READS, {})[source] = dtype
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)
