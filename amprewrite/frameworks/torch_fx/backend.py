"""Capture by dynamo: a ``torch.compile`` backend that rewrites each graph.

It handles models that export cannot: graph breaks, custom autograd functions,
data-dependent control flow.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.fx import GraphModule

from amprewrite.frameworks.base import Planner, Recomputer, announce
from amprewrite.frameworks.torch_fx.aten.dynamo_to_aten import lower
from amprewrite.frameworks.torch_fx.aten.ops import model_variable, torch_dtype
from amprewrite.frameworks.torch_fx.capture.program import drop_dtype_checks
from amprewrite.frameworks.torch_fx.compat import compiling
from amprewrite.frameworks.torch_fx.compat.compiling import outermost_module
from amprewrite.frameworks.torch_fx.compiled_plans import Captured, current
from amprewrite.frameworks.torch_fx.instances import Instances, Place, place_of
from amprewrite.frameworks.torch_fx.lowering.flat_runner import (
    flat_runner,
    without_gradients,
)
from amprewrite.frameworks.torch_fx.lowering.lower_graph import Lowered, lower_graph
from amprewrite.frameworks.torch_fx.lowering.regions import recomputing
from amprewrite.frameworks.torch_fx.module.state import (
    attribute,
    lowered,
)
from amprewrite.frameworks.torch_fx.module.weight_copies import LowWeights
from amprewrite.frameworks.torch_fx.rewrite.read import Reading, read
from amprewrite.frameworks.torch_fx.rewrite.write import rewrite
from amprewrite.frameworks.torch_fx.run_check import first_call_check
from amprewrite.plan import Plan
from amprewrite.policy.match import Reason


@dataclass(eq=False)
class Backend:
    """A backend of ``torch.compile``; calling it rewrites one graph.

    Attributes:
        planner: Plans a captured program.
        target: ``eager`` or ``compiled``.
        plans: List that receives every plan.
        reason: Reason why export was not used; it is part of the plans.
        reports: Whether the caller warns, once for all graphs, instead of each.
        training: Returns whether parameters are trained; None to ask torch.
        part: Path of the model in the one of which it is a part.
        lowers: Whether a lowered graph runs: the same in fewer steps.
        recompute: Adds the regions to compute again to a plan; None for no regions.
    """

    planner: Planner
    target: str = "eager"
    plans: list[Plan] = field(default_factory=list[Plan])
    reason: str = ""
    reports: bool = False
    training: Callable[[], bool] | None = None
    part: str = ""
    lowers: bool = True
    recompute: Recomputer | None = None

    def __call__(self, module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return the rewritten form of one dynamo graph.

        Args:
            module: The graph.
            inputs: Example inputs, parameters among them.
        """
        names = [
            n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder")
        ]
        graph = lower(module, names)
        drop_dtype_checks(graph)
        _restore_paths(module, graph)
        trains = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        training = taped = torch.is_grad_enabled() and trains
        if self.training is not None:
            training = self.training()
        model, weights = model_variable(graph.graph), _weights(graph, inputs)
        root = outermost_module()
        alive = (lambda: None) if root is None else ref(root)
        first = _Lowered(graph, model, weights, training, taped, current(), alive)
        place, local = place_of(module, model, weights, inputs)
        if place is None or not place.prefix:
            return self._built(first, place, inputs)
        untouched = copy.deepcopy(graph)  # for the other modules that run this graph
        built = self._built(first, place, inputs)

        def make(other: Place, given: tuple[Any, ...]) -> Callable[..., Any]:
            again = replace(first, graph=copy.deepcopy(untouched))
            return self._built(again, other, given)

        return Instances(built, place, local, make)

    def _built(
        self, lowered_graph: "_Lowered", place: Place | None, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Return the rewritten form of a graph, for a module at ``place``."""
        weights, training = lowered_graph.weights, lowered_graph.training
        reading = read(lowered_graph.graph, weights, lowered_graph.model, self.part)
        elsewhere = frozenset[str]()
        if place is not None:
            reading.graph = place.paths.renamed(reading.graph, place.prefix)
            elsewhere = place.paths.elsewhere(reading.graph)
        how = "captured by torch.compile (dynamo)"
        reading.graph = replace(reading.graph, taped=lowered_graph.taped)
        if self.reason:
            how = f"{how}: {self.reason}"
        plan = self.planner(
            reading.graph,
            keep_parameter_dtype=training,
            captured=how,
            elsewhere=elsewhere,
        )
        if self.recompute is not None and self.target != "compiled":
            plan = self.recompute(reading.graph, plan)
        looks = self.reports and self.target != "compiled"
        around = first_call_check(reading, plan) if looks else None
        plan = rewrite(reading, plan)
        lowered_graph.graph.recompile()
        low = Lowered(reading.module.graph)
        if self.lowers and self.target != "compiled":
            # Of the weights themselves dynamo looks at the class before each call.
            copies = {name for name, _ in plan.storage if name in weights}
            low = lower_graph(
                low.graph,
                reading.module,
                trains=plan.training,
                packs=bool(copies),
                copies=copies,
            )
        plan = replace(plan, lowerings=low.lowerings)
        lowered_graph.captured.note(plan)
        if plan not in self.plans:  # dynamo captures again for another grad mode
            self.plans.append(plan)
            is_part = place is not None and place.prefix
            if not self.reports and (plan.lowered or not is_part):
                announce(plan)
        run = self._finish(reading, plan, lowered_graph, low, inputs)
        return around(run) if around else run

    def _finish(
        self,
        reading: Reading,
        plan: Plan,
        lowered_graph: "_Lowered",
        low: Lowered,
        inputs: Sequence[Any],
    ) -> Callable[..., Any]:
        graph, weights = reading.module, lowered_graph.weights
        stored: dict[int, torch.dtype] = {}
        for name, dtype in plan.storage:
            if name in weights:
                stored[weights[name]] = torch_dtype(dtype)
            else:  # a constant, which is an attribute of the graph
                _lower_constant(graph, reading.weights[name], torch_dtype(dtype))
        compiled = lowered_graph.compiled
        if self.target != "compiled":
            make = partial(flat_runner, graph)
            run = recomputing(low.graph, plan.recompute, make)
            if low.packed is not None:
                run = without_gradients(make(low.packed), run)
        elif (run := compiled.get(substance := _without_paths(plan))) is None:
            example = [
                x.to(stored[i]) if i in stored else x for i, x in enumerate(inputs)
            ]
            run = compiling.compile_with_inductor(graph, example)
            compiled[substance] = run
        if not stored:
            return run
        model = lowered_graph.root()
        return _with_low_weights(run, LowWeights(stored, self.training, model))


@dataclass
class _Lowered:
    """A dynamo graph at the ATen level.

    Attributes:
        graph: The graph.
        model: The variable of the captured module.
        weights: Position of each placeholder that is a parameter.
        training: Whether parameters are trained.
        taped: Whether gradients are recorded.
        captured: The captures that it belongs to.
        root: Returns the outermost module that runs it; None if that is a function.
        compiled: Its compiled forms, by plan, for all modules that run it.
    """

    graph: GraphModule
    model: str
    weights: Mapping[str, int]
    training: bool
    taped: bool
    captured: Captured
    root: Callable[[], nn.Module | None]
    compiled: dict[Plan, Callable[..., Any]] = field(
        default_factory=dict[Plan, Callable[..., Any]]
    )


def _without_paths(plan: Plan) -> Plan:
    """Return ``plan`` without the module paths and reasons, which nothing runs by."""
    decisions = [
        replace(d, path="", rule="", why="", reason=Reason.RULE) for d in plan.decisions
    ]
    casts = [replace(cast, path="", why="") for cast in plan.casts]
    return replace(plan, decisions=tuple(decisions), casts=tuple(casts))


def _lower_constant(
    module: GraphModule, names: Sequence[str], dtype: torch.dtype
) -> None:
    """Store a constant of ``module`` in ``dtype``, under each of its names."""
    low = lowered(attribute(module, names[0]), dtype)
    for name in names:
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, low)


def _weights(module: GraphModule, inputs: Sequence[Any]) -> dict[str, int]:
    """Return the placeholders that are parameters, with their positions."""
    nodes = module.graph.find_nodes(op="placeholder")
    return {
        node.name: index
        for index, (node, held) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(held, nn.Parameter)
    }


def _with_low_weights(
    run: Callable[..., Any], weights: LowWeights
) -> Callable[..., Any]:
    """Return ``run`` called with low copies of weights."""

    def call(*inputs: Any) -> Any:
        return run(*weights.lowered(inputs))

    return call


def _restore_paths(source: GraphModule, lowered_graph: GraphModule) -> None:
    """Rename placeholders of the lowered graph as those of the dynamo graph."""
    pairs = zip(
        source.graph.find_nodes(op="placeholder"),
        lowered_graph.graph.find_nodes(op="placeholder"),
        strict=True,
    )
    for theirs, ours in pairs:
        ours.name = theirs.name.strip("_").lower()
