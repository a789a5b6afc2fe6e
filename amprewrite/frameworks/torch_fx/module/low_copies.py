"""Low copies of weights that a program also reads in full, renewed after writes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark
from amprewrite.frameworks.torch_fx.module.pickling import StoredGraph
from amprewrite.frameworks.torch_fx.module.state import attribute


class LowCopies:
    """The low copies of one program: buffers, with the graph that computes them.

    A copied or loaded one computes all copies anew before the next call.

    Attributes:
        sources: Names of the weights that have a copy.
    """

    def __init__(self, owner: nn.Module, recipe: Graph) -> None:
        """Take the copies that ``owner`` has now for up to date.

        Args:
            owner: The program.
            recipe: Graph that computes the copies, and returns them by buffer name.
        """
        nodes = recipe.find_nodes(op="get_attr")
        self.sources = tuple(dict.fromkeys(str(node.target) for node in nodes))
        self._recipe = StoredGraph.of(recipe)
        self._compute: Callable[..., Mapping[str, torch.Tensor]] | None = None
        self._state = self._marks(owner)

    @classmethod
    def none(cls) -> "LowCopies":
        """Return those of a program that has none."""
        empty = Graph()
        empty.output({})
        return cls(nn.Module(), empty)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, without that of these weights."""
        return {"sources": self.sources, "_recipe": self._recipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, which is not up to date."""
        self.__dict__.update(state)
        self._compute, self._state = None, ()

    def recipe(self) -> Graph:
        """Return the graph that computes the copies."""
        return self._recipe.graph()

    def renew(self, owner: nn.Module) -> None:
        """Compute the copies again if their weights have changed."""
        if not self.sources or (self._state and self._holds(owner)):
            return
        if self._compute is None:
            self._compute = type(GraphModule(owner, self.recipe())).forward
        with torch.no_grad():
            for name, value in self._compute(owner).items():
                owner.get_buffer(name).copy_(value)
        self._state = self._marks(owner)

    def outdate(self) -> None:
        """Compute the copies again before the next call."""
        self._state = ()

    def _weights(self, owner: nn.Module) -> Iterator[torch.Tensor]:
        return (attribute(owner, name) for name in self.sources)

    def _marks(self, owner: nn.Module) -> tuple[Mark, ...]:
        return tuple(map(Mark, self._weights(owner)))

    def _holds(self, owner: nn.Module) -> bool:
        return all(map(Mark.holds, self._state, self._weights(owner)))
