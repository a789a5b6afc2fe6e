"""Run two graphs of one model side by side, op by op: the reference and the rewritten.

The rewritten graph has the ops of the original under the same names, with casts between
them. Each op of both is run on its own operands (the accumulated error), and the
rewritten one once more on the operands of the reference, rounded to the dtypes that it
reads (its own error). A product that the processor emulates runs once. An inserted node
passes on one of its operands, in another dtype, range or layout (casts, clamps of
masks, copies, parts of a list): it is compared with that operand.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from amprewrite.dtypes import format_of
from amprewrite.execute.lockstep import inserted
from amprewrite.execute.lockstep import inserted_sample as make_sample
from amprewrite.execute.sensitivity import FAILURES
from amprewrite.frameworks.torch_fx.aten.ops import (
    dtype_name,
    module_path,
    source_line,
)
from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from amprewrite.frameworks.torch_fx.compat.settings import fork_rng
from amprewrite.frameworks.torch_fx.executor import (
    Draws,
    Executor,
    Observer,
    Operands,
    may_write,
)
from amprewrite.frameworks.torch_fx.probes.emulated_products import (
    Products,
    is_known,
    rounded_alone,
)
from amprewrite.frameworks.torch_fx.probes.runner import (
    TensorValues,
    floats,
    is_inexact,
    paired,
    rounded,
    views_of,
    widened_again,
)
from amprewrite.frameworks.torch_fx.rewrite.fp8_operators import FP8_DOT, QUANTISE
from amprewrite.measure.runs import (
    Observe,
    OpSample,
    are_equal,
    blocks,
)
from amprewrite.plan import Decision


class Again:
    """An op of the original and operands for it, in the reference's dtype.

    Args:
        run: Calls the op with operands.
        operands: Positional and keyword operands, with tensors at any depth. Operands
            that the op writes are copies.
        writes: Whether the op may write to its operands.
    """

    def __init__(
        self, run: Callable[[Any], Any], operands: Any, *, writes: bool = False
    ) -> None:
        """Store the op and the operands; nothing is run."""
        self.run, self.operands, self.writes = run, operands, writes

    @property
    def largest(self) -> int:
        """Number of elements of the largest float operand."""
        return max((tensor.numel() for tensor in floats(self.operands)), default=0)

    def results(self) -> list[torch.Tensor] | None:
        """Return the float results; None if the op does not run on the operands."""
        return self._results(lambda tensor: tensor.clone() if self.writes else tensor)

    def __call__(self, unit: float, draw: int) -> tuple[TensorValues, ...] | None:
        """Return the results with every float operand moved by ``unit``, up or down.

        Random ops draw other numbers than before. The random state is restored.

        Args:
            unit: Relative amount by which each element is moved.
            draw: Seed of the choice between up and down.
        """
        tensors = floats(self.operands)
        devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
        draws = torch.Generator().manual_seed(draw)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not is_inexact(tensor):
                return tensor.clone()
            signs = torch.randint(0, 2, tensor.shape, generator=draws) * 2 - 1
            return tensor * (1 + unit * signs.to(tensor.device, torch.float64))

        with fork_rng(devices):
            untyped: Any = torch
            untyped.manual_seed(draw)
            results = self._results(moved)
            return None if results is None else tuple(map(TensorValues, results))

    def _results(
        self, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor] | None:
        def changed(leaf: Any) -> Any:
            strided = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
            return change(leaf) if strided else leaf

        try:
            return floats(self.run(pytree.tree_map(changed, self.operands)))
        except FAILURES:
            return None


class Runs(NamedTuple):
    """The results of a converted op, and of the original's.

    Attributes:
        value: Results of the converted op in its program.
        alone: Float results of the converted op on the reference's operands, rounded.
        same: Float results of the original's op on these; None if it does not run.
        again: The original's op on the operands with which it is compared.
        checked: Its results on the operands of ``value``, if it is compared there.
    """

    value: Any
    alone: list[torch.Tensor]
    same: list[torch.Tensor] | None
    again: Again
    checked: tuple[torch.Tensor, ...] = ()


class Pair(Observer):
    """Observer of a rewritten graph that runs the original beside it, op by op.

    Args:
        theirs: The original, before its first node.
        whole: Names of the ops that are not entered, though they have a body.
    """

    def __init__(self, theirs: Executor, whole: Container[str]) -> None:
        """Store the original."""
        self.theirs, self.whole = theirs, whole

    def on_twins(
        self, executor: Executor, node: Node, twin: Node, operands: Operands
    ) -> Any:
        """Run an op of both graphs, and return the result in the rewritten one.

        Args:
            executor: The rewritten graph.
            node: The op in it.
            twin: The op in the original, which was run up to it.
            operands: Operands in the rewritten graph.
        """
        raise NotImplementedError

    def on_inserted(self, executor: Executor, node: Node, value: Any) -> None:
        """Look at the value of a node that the original does not have."""

    def enters(self, executor: Executor, node: Node) -> bool:
        """Return whether the original's body is run beside this one."""
        name = executor.prefix + node.name
        return name not in self.whole and node.name in self.theirs.named

    def on_body(self, executor: Executor, node: Node, inner: Executor) -> Any:
        """Run a body of both graphs side by side."""
        del executor
        outer, twin = self.theirs, self.theirs.named[node.name]
        outer.run_to(twin)
        self.theirs = outer.body(twin)
        try:
            with inner.mode():
                value = inner.run()
                outer.values[twin] = self.theirs.finish()
        finally:
            self.theirs = outer
        outer.release(twin)
        return value

    def on_call(self, executor: Executor, node: Node, operands: Operands) -> Any:
        """Run an op of both graphs, or an inserted one."""
        twin = self.theirs.named.get(node.name)
        if twin is None:
            value = executor.call(node, operands)
            self.on_inserted(executor, node, value)
            return value
        self.theirs.run_to(twin)
        value = self.on_twins(executor, node, twin, operands)
        self.theirs.release(twin)
        return value


class Lockstep(Pair):
    """Comparison of the ops of a rewritten graph with those of the original.

    It observes the run of the rewritten graph, and runs the original beside it.

    Args:
        theirs: The original, before its first node.
        decisions: The ops to compare, by name.
        observe: Receives their samples.
        contractions: Names of the ops that multiply and sum.
        limit: Largest finite number of the low dtype, to which masks are clamped.
        products: Keeps the results of emulated products; None to run all kernels.
    """

    def __init__(
        self,
        theirs: Executor,
        decisions: Mapping[str, Decision],
        observe: Observe,
        contractions: Collection[str] = (),
        limit: float = inf,
        products: Products | None = None,
    ) -> None:
        """Store the ops to compare."""
        super().__init__(theirs, decisions)
        self.decisions, self.observe = decisions, observe
        self.contractions, self.limit = contractions, limit
        self.products = products
        self.unmatched: list[str] = []
        self.seen: set[Node] = set()

    def on_twins(
        self, executor: Executor, node: Node, twin: Node, operands: Operands
    ) -> Any:
        """Run an op, and compare its results with those of the original."""
        name = executor.prefix + node.name
        if name not in self.decisions:
            self.theirs.step(twin)
            return executor.call(node, operands)
        self._weights(executor, node, twin)
        return self._compare(self.decisions[name], executor, (node, twin), operands)

    def on_inserted(self, executor: Executor, node: Node, value: Any) -> None:
        """Compare the value of an inserted node with its source."""
        if node.op == "call_function":
            operands = [executor.values[operand] for operand in node.all_input_nodes]
            name = executor.prefix + node.name
            sample = inserted_sample(node, name, value, floats(operands), self.limit)
            if sample is not None:
                self.observe(sample)

    def _weights(self, ours: Executor, node: Node, twin: Node) -> None:
        """Compare the weights that an op reads with the original's, each once."""
        leaves, exact = (pytree.tree_leaves((n.args, n.kwargs)) for n in (node, twin))
        for weight, source in zip(leaves, exact, strict=False):
            if not (isinstance(weight, Node) and isinstance(source, Node)):
                continue
            if weight.op != "get_attr" or weight in self.seen:
                continue
            self.seen.add(weight)
            stored, full = ours.values[weight], self.theirs.values[source]
            if not is_rounded(stored, full):
                sample = inserted_sample(
                    weight, weight.name, stored, floats(full), self.limit
                )
                if sample is not None:
                    self.observe(sample)

    def _compare(
        self,
        decision: Decision,
        ours: Executor,
        nodes: tuple[Node, Node],
        read: Operands,
    ) -> Any:
        """Run an op of both graphs, and show the pair of their results.

        Args:
            decision: The decision about the op.
            ours: The rewritten graph.
            nodes: The op in the rewritten graph, and in the original.
            read: Operands in the rewritten graph.

        Returns:
            The result in the rewritten graph.
        """
        theirs, (node, twin) = self.theirs, nodes
        exact = theirs.operands(twin)
        draws, pure = Draws(node), not (may_write(node) or may_write(twin))
        results = floats(theirs.step(twin)) if pure else []
        views = views_of(results, floats(exact))
        if views:
            draws.rewind()
            value = ours.call(node, read)
            moved = floats(value)
            if views_of(moved, floats(read)) == views:
                self.observe(_moved(decision.op, results, moved))
                return value
            draws.rewind()
        fed = paired(read, exact, rounded)
        contracts = decision.op in self.contractions

        def again_on(operands: Any) -> Again:
            wide = widened_again(exact, operands, products=contracts)
            return Again(partial(theirs.call, twin), wide, writes=not pure)

        again = again_on(fed)
        if not pure:  # it may write to its operands, which were copied first
            results = floats(theirs.step(twin))
        reference = tuple(map(TensorValues, results))
        draws.rewind()
        runs = None
        if pure and contracts and node.target is twin.target:
            beside = partial(again_on, read)
            run = partial(ours.call, node, read)
            runs = self._emulated(decision, run, (exact, read), beside, again)
        if runs is None:
            same = again.results()
            draws.rewind()
            alone = floats(ours.call(node, fed))
            draws.rewind()
            runs = Runs(ours.call(node, read), alone, same, again)
        if reference:
            self._show(decision, node, reference, runs)
        return runs.value

    def _show(
        self,
        decision: Decision,
        node: Node,
        reference: tuple[TensorValues, ...],
        runs: Runs,
    ) -> None:
        """Show a sample of an op, if its results have the reference's shapes."""
        actual = tuple(map(TensorValues, floats(runs.value)))
        shapes = [a.shape for a in actual]
        if shapes != [r.shape for r in reference]:
            self.unmatched.append(decision.op)
            return
        alone, same = (
            tuple(map(TensorValues, x or ())) for x in (runs.alone, runs.same)
        )
        compares = [a.shape for a in same] == shapes
        least = max(1, min(values.size for values in actual))
        sample = OpSample(
            op=decision.op,
            reference=reference,
            actual=actual,
            alone=alone,
            exact=compares and are_equal(alone, same),
            same=same if compares else None,
            again=runs.again,
            contracts=decision.op in self.contractions,
            length=runs.again.largest / least,
            format=decision.forward if node.target is FP8_DOT else "",
            checked=tuple(map(TensorValues, runs.checked)),
        )
        self.observe(sample)

    def _emulated(
        self,
        decision: Decision,
        run: Callable[[], Any],
        operands: tuple[Any, Any],
        beside: Callable[[], Again],
        again: Again,
    ) -> Runs | None:
        """Return the runs of an emulated product; None if it is to be run alone.

        Args:
            decision: The decision about it.
            run: Runs the converted op.
            operands: Those of the original's op, and those of the converted one.
            beside: Returns the original's op on the latter.
            again: The original's op on its own operands, rounded.
        """
        if self.products is None or not is_known(decision.canonical, *operands):
            return None
        checks = beside()
        with self.products.once():
            value = run()
        checked, same = checks.results(), again.results()
        alone = rounded_alone(floats(value), checked, same)
        if alone is None or checked is None:
            return None
        return Runs(value, alone, same, checks, tuple(checked))


def _moved(
    op: str, exact: Collection[torch.Tensor], ours: Collection[torch.Tensor]
) -> OpSample:
    """Return the sample of an op that moves the same elements in both graphs."""
    reference, actual = tuple(map(TensorValues, exact)), tuple(map(TensorValues, ours))
    return OpSample(op, reference, actual, reference, exact=True, same=reference)


def inserted_sample(
    node: Node,
    name: str,
    value: object,
    operands: Sequence[torch.Tensor],
    limit: float,
) -> OpSample | None:
    """Return a sample of an inserted node's value and of its source.

    Args:
        node: The node.
        name: Its name in the whole program.
        value: Its value.
        operands: Its float operands.
        limit: Largest finite number of the low dtype; larger values may become
            anything, and count as zero.

    Returns:
        None if nothing can be compared: no float, or no operand of that shape.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    alike = [tensor for tensor in operands if tensor.shape == value.shape]
    if not alike:
        return None
    actual = TensorValues(value)
    sources = [TensorValues(tensor) for tensor in alike]
    source = sources[0]
    if len(sources) > 1:
        source = min(sources, key=partial(_distance, actual))
    format_name = str(node.args[1]) if node.target is QUANTISE else ""  # of 8 bits
    rounding = format_of(format_name or dtype_name(value.dtype))
    is_weight = node.op == "get_attr"
    native = f"stored {node.target}" if is_weight else str(node.target)
    decision = inserted(name, native, (dtype_name(alike[0].dtype), rounding.name))
    decision = replace(
        decision,
        canonical="weight" if is_weight else decision.canonical,
        path=module_path(node),
        source=source_line(node),
    )
    prefix = name.removesuffix(node.name)
    readers = [prefix + user.name for user in node.users if user.op != "output"]
    bound = min(limit, float(rounding.max))
    exceeded = bound if source.exceeds(bound) else None
    return make_sample(decision, source, actual, exceeded, readers)


def is_rounded(stored: object, full: object) -> bool:
    """Return whether a stored weight is the original's, rounded to its dtype."""
    if not (isinstance(stored, torch.Tensor) and isinstance(full, torch.Tensor)):
        return True
    if stored.layout != torch.strided or stored.shape != full.shape:
        return True
    return torch.equal(stored.detach(), full.detach().to(stored.dtype))


def _distance(left: TensorValues, right: TensorValues) -> float:
    with np.errstate(invalid="ignore"):  # infinities have no distance
        return float(sum(np.nansum(abs(a - b)) for a, b in blocks(left, right)))
