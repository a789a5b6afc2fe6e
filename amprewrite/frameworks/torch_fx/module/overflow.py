"""Check for overflow: run a model once if its low dtype has a small range.

float16 ends at 65504. A model with larger values silently returns infinities or NaN;
one run on the arguments of the conversion shows it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from amprewrite.frameworks.torch_fx.aten.ops import torch_dtype
from amprewrite.frameworks.torch_fx.capture.warmup import copies, has_values, try_run
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.executor import Executor, Observer, Operands
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Decision, Plan
from amprewrite.plan.facts import is_narrow, overflow_warning

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
"""Layouts with their values in one dense tensor."""


def overflows(
    converted: ConvertedModule,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[str, ...]:
    """Return a warning if outputs are not finite where the model's are.

    Both run without side effects, the model only if outputs are not finite. Nothing is
    run if the low dtype has the range of the full one, if tensors have no values, or in
    a group of processes.
    """
    plan = converted.decided
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not is_narrow(plan) or together or not has_values(model, args, kwargs):
        return ()
    ours = _outputs(converted, converted, args, kwargs)
    if all(map(_is_finite, ours)):
        return ()
    theirs = _outputs(model, model, args, kwargs)
    pairs = zip(ours, theirs, strict=True)
    if not any((wide.isfinite() & ~low.isfinite()).any() for low, wide in pairs):
        return ()
    return (overflow_warning(plan, _first(converted, plan, args, kwargs)),)


def _outputs(
    run: nn.Module, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Return the float outputs of one run that leaves no side effects."""
    found: list[Any] = []

    def running(*given: Any, **named: Any) -> None:
        found[:] = [run(*given, **named)]

    try_run(running, model, args, kwargs)
    leaves = pytrees.pytree.tree_leaves(found)
    return [x for x in leaves if isinstance(x, torch.Tensor) and _is_real(x)]


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_finite(value: object) -> bool:
    """Return whether a value has no infinity and no NaN."""
    if not isinstance(value, torch.Tensor) or not _is_real(value):
        return True
    if value.layout in COMPRESSED:  # neither isfinite nor all takes these
        value = value.values()
    elif value.layout == torch.sparse_coo:
        value = value.coalesce().values()
    return value.layout != torch.strided or bool(value.isfinite().all())


def _first(
    converted: ConvertedModule,
    plan: Plan,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Decision | None:
    """Return the decision about the first op that overflows the low dtype."""
    graph = converted.rewritten
    if graph is None:
        return None
    seeker = _Seeker(torch_dtype(plan.low), torch_dtype(plan.full))

    def running(*given: Any, **named: Any) -> None:
        inputs = pytrees.pytree.tree_leaves(converted.arranged(given, named))
        Executor(converted, graph.graph, inputs, seeker).run()

    try_run(running, converted, args, kwargs)
    return next((plan.by_op[n] for n in seeker.names if n in plan.by_op), None)


class _Seeker(Observer):
    """Observer that notes the first op that overflows.

    Attributes:
        names: Names of the op in a plan: of a cast, those of its neighbours.
    """

    def __init__(self, low: torch.dtype, full: torch.dtype) -> None:
        self.low, self.full = low, full
        self.names: list[str] = []

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Return the result of an op; note the op if it overflows."""
        value = executor.call(node, operands)
        overflows = not (self.names or _all_finite(value)) and _all_finite(operands)
        if overflows and self._fits_in_full(executor, node, operands):
            nodes = (node, *node.users, *node.all_input_nodes)
            self.names = [executor.prefix + n.name for n in nodes]
        return value

    def _fits_in_full(self, executor: Executor, node: Node, operands: Operands) -> bool:
        """Return whether the op is finite in the full dtype, on the same operands."""

        def wide(arg: Any) -> Any:
            if isinstance(arg, torch.Tensor):
                return arg.to(self.full) if arg.dtype == self.low else arg
            return self.full if arg == self.low else arg

        full = pytrees.pytree.tree_map(wide, copies(operands))
        try:
            return _all_finite(executor.call(node, full))
        except (RuntimeError, TypeError):  # an op of the low dtype alone
            return True


def _all_finite(values: Any) -> bool:
    return all(map(_is_finite, pytrees.pytree.tree_leaves(values)))
