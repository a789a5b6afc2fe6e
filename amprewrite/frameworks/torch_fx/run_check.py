"""The check of a run: captured and rewritten program, side by side, once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from amprewrite.errors import Notice, warn
from amprewrite.execute.run_check import INTENDED, Extent, RunCheck
from amprewrite.frameworks.torch_fx.aten.ops import packet_name, torch_dtype
from amprewrite.frameworks.torch_fx.capture.warmup import copies, has_values, try_run
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.frameworks.torch_fx.conversion import Conversion
from amprewrite.frameworks.torch_fx.executor import Draws, Executor, Operands
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.probes.lockstep import Pair
from amprewrite.frameworks.torch_fx.probes.runner import floats
from amprewrite.frameworks.torch_fx.probes.tolerance import copied_program
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.untouched.undisturbed import undisturbed
from amprewrite.ops.repeatable import UNINITIALISED
from amprewrite.plan import Plan

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
"""Layouts with their values in one dense tensor."""

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Function that adds to the function of a graph what is done at its first call."""

Look = Callable[[ConvertedModule], tuple[Notice, ...]]
"""Function that runs a module beside its program and returns what it sees."""


def run_check(conversion: Conversion, reading: Reading, plan: Plan) -> Look:
    """Return the check of a program, to be called once it is rewritten.

    Nothing is run within a tolerance, which was measured; without arguments; if tensors
    have no values; in a group of processes, which might differ; and if the plan rounds
    nothing that a run has to show, see :meth:`RunCheck.of`.

    Args:
        conversion: The model and the request.
        reading: The program, before it is rewritten; it is copied if it is to run.
        plan: Its plan.
    """
    request, args, kwargs = conversion.request, conversion.args, conversion.kwargs
    if request.budget is not None or not request.has_arguments:
        return _nothing
    check = _check_of(reading, plan)
    if check is None or not has_values(conversion.root, args, kwargs):
        return _nothing
    program = copied_program(reading.module)

    def look(converted: ConvertedModule) -> tuple[Notice, ...]:
        """Run both programs on copies of the arguments, and leave no trace."""
        rewritten = converted.rewritten
        assert rewritten is not None

        def running(*args: Any, **kwargs: Any) -> None:
            inputs = pytree.tree_leaves(converted.arranged(args, kwargs))
            full = Executor(program, program.graph, copies(inputs))
            low = Executor(converted, rewritten.graph, inputs, SideBySide(full, check))
            low.run()

        with undisturbed(converted, hooks=False):
            try_run(running, conversion.root, args, kwargs)
        return check.notices()

    return look


def first_call_check(reading: Reading, plan: Plan) -> Around:
    """Return what adds the check to a program, captured by dynamo, at its first call.

    Args:
        reading: The program, before it is rewritten; it is copied if it is to run. Its
            weights are placeholders.
        plan: Its plan.
    """
    check = _check_of(reading, plan)
    if check is None:
        return lambda run: run
    module, dtypes = reading.module, dict(plan.storage)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    program = copied_program(module)

    def look(inputs: tuple[Any, ...]) -> None:
        """Run both programs on copies of the inputs; weights are not written to."""
        exact, low = list[Any](), list[Any]()
        for name, value in zip(names, inputs, strict=True):
            is_weight = name in reading.weights
            exact.append(value if is_weight else copies(value))
            dtype = torch_dtype(dtypes[name]) if name in dtypes else None
            low.append(
                value.to(dtype) if dtype else value if is_weight else copies(value)
            )
        full = Executor(program, program.graph, exact)
        devices = {x.device.index or 0 for x in floats(inputs) if x.is_cuda}
        with torch.no_grad(), fork_rng(sorted(devices)):
            observer = SideBySide(full, check)
            Executor(module, module.graph, low, observer).run()
        for notice in check.notices():
            warn(notice)

    pending = [look]  # emptied by the call, which dynamo keeps for good

    def around(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            if pending and has_values(nn.Module(), inputs):
                looks, pending[:] = pending[:], []
                for first in looks:
                    first(inputs)
            return run(*inputs)

        return call

    return around


def _nothing(converted: ConvertedModule) -> tuple[Notice, ...]:
    del converted
    return ()


def _check_of(reading: Reading, plan: Plan) -> RunCheck | None:
    """Return the check of a program; None in a group of processes, too."""
    return None if _in_group() else RunCheck.of(reading.graph, plan)


def _in_group() -> bool:
    """Return whether this process is one of a group, which might differ."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class SideBySide(Pair):
    """Observer of a rewritten graph that shows its values to a check.

    Args:
        theirs: The original, before its first node.
        check: Receives the values.
    """

    def __init__(self, theirs: Executor, check: RunCheck) -> None:
        """Store the original and the check."""
        super().__init__(theirs, ())
        self.check = check

    def on_twins(
        self, executor: Executor, node: Node, twin: Node, operands: Operands
    ) -> Any:
        """Run an op of both graphs, and show its operands and its results."""
        name = executor.prefix + node.name
        draws = Draws(node)
        if name in self.check.exact:
            sides = self.theirs.operands(twin), operands
            full, low = ([*map(_array, _numbers(side))] for side in sides)
            self.check.saw_argument(name, full, low)
        exact = floats(self.theirs.step(twin))
        draws.rewind()
        value = executor.call(node, operands)
        if packet_name(node.target) in UNINITIALISED:  # each side has other numbers
            for made in (*exact, *floats(value)):
                made.zero_()
        for full, low in zip(exact, floats(value), strict=False):
            extent = extent_of(full, low) if self.check.narrow else None
            if extent is not None:
                self.check.saw_overflow((name,), extent)
        return value

    def on_inserted(self, executor: Executor, node: Node, value: Any) -> None:
        """Show the value of an inserted node, beside its source."""
        if not self.check.narrow or node.op != "call_function":
            return
        readers = [executor.prefix + user.name for user in node.users]
        for source in node.all_input_nodes:
            for made in floats(value):
                for full in floats(executor.values[source]):
                    extent = extent_of(full, made)
                    if extent is not None:
                        maker = executor.prefix + source.name
                        self.check.saw_cast(readers, maker, extent)


def extent_of(full: torch.Tensor, low: torch.Tensor) -> Extent | None:
    """Return the elements that are finite in ``full`` alone; None if there are none."""
    full, low = _dense(full), _dense(low)
    if full.shape != low.shape or low.layout != torch.strided:
        return None
    if low.dtype.itemsize == 1:  # has no kernels
        low = low.float()
    if bool(low.isfinite().all()):
        return None
    lost = full.isfinite() & ~low.isfinite() & (full.abs() < INTENDED)
    count = int(lost.sum())
    if not count:
        return None
    return Extent(count, lost.numel(), float(full[lost].abs().max()))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored values of a sparse tensor, and others unchanged."""
    tensor = tensor.detach()
    if tensor.layout in COMPRESSED:  # neither isfinite nor all takes these
        return tensor.values()
    return tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor


def _numbers(operands: Operands) -> list[Any]:
    """Return the tensors and numbers among the positional operands of an op."""
    leaves = pytree.tree_leaves(operands[0])
    return [x for x in leaves if isinstance(x, (torch.Tensor, int, float))]


def _array(value: Any) -> Any:
    """Return a tensor as an array of NumPy, in a dtype that NumPy has."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu().resolve_conj()
    return (value.double() if value.is_floating_point() else value).numpy()
