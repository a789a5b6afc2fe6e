"""Restore ops of a converted module to the original's, on one capture of it."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.comparison.compare import (
    is_same_program,
    program_of,
    root_of,
)
from amprewrite.frameworks.torch_fx.compat import pytrees
from amprewrite.frameworks.torch_fx.compat.settings import without_any_autocast
from amprewrite.frameworks.torch_fx.compat.threads import one_at_a_time
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.probes.lockstep import Walk
from amprewrite.frameworks.torch_fx.probes.restored.steps import Restoring
from amprewrite.frameworks.torch_fx.probes.restored.storages import Storages
from amprewrite.frameworks.torch_fx.probes.runner import Runner, devices_of
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.measure.ablation import Ablation, Seconds
from amprewrite.measure.runs import Call, Run


@one_at_a_time
def ablation(original: Any, converted: Any, call: Call) -> Ablation | str:
    """Return a converted module with ops that can be restored, or why there is none.

    Args:
        original: The model.
        converted: The converted model.
        call: The arguments.
    """
    converted = program_of(converted, call)
    if not isinstance(converted, ConvertedModule) or converted.rewritten is None:
        return "the converted model has no graph of the whole model"
    args, kwargs = converted.arranged(call.args, call.kwargs)
    root = root_of(original)
    runner = Runner(replace(call, args=args, kwargs=kwargs), devices_of(root, call))
    with runner.isolated(root, converted):
        reading = read(capture(original, args, kwargs).module)
    if not is_same_program(reading, converted.plan):
        return "captured again it is another program"
    return _Ablation(converted, reading, runner)


class _Ablation:
    """A converted module, of which each run restores other ops.

    Args:
        converted: The module.
        reading: The original, as captured.
        runner: Runs both.
    """

    def __init__(
        self, converted: ConvertedModule, reading: Reading, runner: Runner
    ) -> None:
        """Keep the capture; nothing is run."""
        self.converted, self.reading, self.runner = converted, reading, runner
        self.plan, self.graph = converted.plan, reading.graph
        self.storages = Storages(self.graph)
        self.restorable = self.storages.restorable
        self.seconds: dict[str, Seconds] = {}

    @one_at_a_time
    def run(self, restored: Collection[str]) -> Run:
        converted, module = self.converted, self.reading.module
        rewritten = converted.rewritten
        assert rewritten is not None
        structure = pytrees.call_structure(rewritten.graph)
        restoring = Restoring(
            self.plan.by_op, self.storages, frozenset(restored), self.seconds
        )

        def run(*args: Any, **kwargs: Any) -> Any:
            inputs = pytrees.pytree.tree_leaves((args, kwargs))
            ours = Walk(converted, rewritten.graph, inputs, {})
            theirs = Walk(module, module.graph, (), {})
            with without_any_autocast():
                flat = restoring.run(ours, theirs)
            if structure is None:
                return flat
            leaves = pytrees.pytree.tree_leaves(flat)
            return pytrees.pytree.tree_unflatten(leaves, structure.out_spec)

        return self.runner.run(converted, run)
