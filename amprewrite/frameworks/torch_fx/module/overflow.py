"""Check for overflow: run a model once if its low dtype has a small range.

float16 ends at 65504. A model with larger values silently returns infinities or NaN;
one run on the arguments of the conversion shows it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Interpreter, Node

from amprewrite.frameworks.torch_fx.aten.dtypes import torch_dtype
from amprewrite.frameworks.torch_fx.capture.warmup import copies, has_values, try_run
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.plan import Decision, Plan
from amprewrite.plan.overflow import is_narrow, overflow_warning

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
    seeker = _Seeker(graph, torch_dtype(plan.low), torch_dtype(plan.full))

    def running(*given: Any, **named: Any) -> None:
        arranged, rest = converted.arranged(given, named)
        seeker.run(*pytrees.pytree.tree_leaves((arranged, rest)))

    try_run(running, converted, args, kwargs)
    return next((plan.by_op[n] for n in seeker.names() if n in plan.by_op), None)


class _Seeker(Interpreter):
    """Interpreter that records the first node that overflows."""

    def __init__(self, module: Any, low: torch.dtype, full: torch.dtype) -> None:
        super().__init__(module)
        self.low, self.full = low, full
        self.found: Node | None = None

    def names(self) -> list[str]:
        """Return the names of the op in a plan: of a cast, those of its neighbours."""
        if self.found is None:
            return []
        beside = (*self.found.users, *self.found.all_input_nodes)
        return [self.found.name, *(node.name for node in beside)]

    def run_node(self, n: Node) -> Any:
        made = super().run_node(n)
        if self.found is None and n.op == "call_function" and not _all_finite(made):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            if _all_finite((args, kwargs)) and self._fits_in_full(n, args, kwargs):
                self.found = n
        return made

    def _fits_in_full(self, node: Node, args: Any, kwargs: Any) -> bool:
        """Return whether the op is finite in the full dtype, on the same operands."""

        def wide(arg: Any) -> Any:
            if isinstance(arg, torch.Tensor):
                return arg.to(self.full) if arg.dtype == self.low else arg
            return self.full if arg == self.low else arg

        target: Any = node.target
        given, named = pytrees.pytree.tree_map(wide, copies((args, kwargs)))
        try:
            return _all_finite(target(*given, **named))
        except (RuntimeError, TypeError):  # an op of the low dtype alone
            return True


def _all_finite(values: Any) -> bool:
    return all(map(_is_finite, pytrees.pytree.tree_leaves(values)))
