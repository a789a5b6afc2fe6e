"""The modules that share one dynamo graph, each run by a plan of its own."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from torch.fx import GraphModule

from amprewrite.frameworks.torch_fx.capture.model_paths import ModelPaths, weights_of
from amprewrite.frameworks.torch_fx.compat import compiling

Run = Callable[..., Any]


class Place:
    """The place of a captured module in its model.

    Attributes:
        paths: Names of the modules and parameters of the model.
        prefix: Path of the captured module; empty for the model itself.
    """

    def __init__(self, paths: ModelPaths, prefix: str) -> None:
        """Take the names and the path."""
        self.paths, self.prefix = paths, prefix


class Instances:
    """A dynamo graph of a module inside a model, which other modules run too.

    A module after a graph break is captured by itself, once for all modules of its
    class, with the parameters as inputs; these say which one of them runs.
    """

    def __init__(
        self, first: Run, place: Place, names: Mapping[int, str], make: "Make"
    ) -> None:
        """Take the function of the captured module.

        Args:
            first: Runs the graph for the captured module.
            place: The captured module.
            names: Positions of the parameters among the inputs, with their local paths.
            make: Returns a function that runs the graph for a module at another place.
        """
        self._first, self._place, self._names, self._make = first, place, names, make
        self._runs = {place.prefix: first}
        self._known: dict[int, tuple[ref[Any], Run]] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph by the plan of the module that these parameters belong to."""
        key = inputs[next(iter(self._names))]
        known = self._known.get(id(key))
        if known is None or known[0]() is not key:
            known = self._known[id(key)] = ref(key), self._run_of(inputs)
        return known[1](*inputs)

    def _run_of(self, inputs: tuple[Any, ...]) -> Run:
        root = compiling.outermost_module()
        paths = self._place.paths
        if root is not None and not paths.is_of(root):
            paths = ModelPaths(root)
        prefix = paths.prefix((name, inputs[i]) for i, name in self._names.items())
        if prefix is None:
            return self._first
        if prefix not in self._runs:
            self._runs[prefix] = self._make(Place(paths, prefix), inputs)
        return self._runs[prefix]


Make = Callable[[Place, tuple[Any, ...]], Run]


def place_of(
    module: GraphModule, model: str, weights: Mapping[str, int], inputs: list[Any]
) -> tuple[Place | None, dict[int, str]]:
    """Return the place of the module that dynamo captures now, and its parameters.

    The place is None if the captured function is no method of a module, or the module
    has no parameters.

    Args:
        module: The dynamo graph.
        model: The variable of the captured module.
        weights: Position of each placeholder that is a parameter.
        inputs: Example inputs.

    Returns:
        The place, and the positions of the parameters with their local paths.
    """
    sources = compiling.parameter_sources(module)
    nodes = module.graph.find_nodes(op="placeholder")
    at = {node.name: i for i, node in enumerate(nodes) if i in set(weights.values())}
    names = weights_of(sources, at, model)
    root = compiling.outermost_module() if names else None
    if root is None:
        return None, names
    paths = ModelPaths(root)
    prefix = paths.prefix((name, inputs[i]) for i, name in names.items())
    return (None if prefix is None else Place(paths, prefix)), names
