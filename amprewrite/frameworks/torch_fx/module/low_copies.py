"""Low copies of weights that a program also reads in full, renewed after writes."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark
from amprewrite.frameworks.torch_fx.compat import module_parts
from amprewrite.frameworks.torch_fx.compat.operators import in_transform
from amprewrite.frameworks.torch_fx.module.state import attribute
from amprewrite.frameworks.torch_fx.module.stored.pickling import StoredGraph
from amprewrite.frameworks.torch_fx.untouched.first_writes import outdated_by_put_back


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
        self._alone = RLock()

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
        self._compute, self._state, self._alone = None, (), RLock()

    def recipe(self) -> Graph:
        """Return the graph that computes the copies."""
        return self._recipe.graph()

    def renew(self, owner: nn.Module) -> None:
        """Compute the copies again if their weights have changed."""
        if not self.sources or in_transform():  # where each use is a cast of its own
            return
        if self._state and self._holds(owner):
            return
        with torch.no_grad():
            for name, value in self._computed(owner).items():
                owner.get_buffer(name).copy_(value)
        self._state = self._marks(owner)
        outdated_by_put_back(self.outdate)

    @contextmanager
    def passing_gradients(self, owner: nn.Module) -> Generator[None]:
        """Let gradients pass through the copies of ``owner`` to its weights.

        The copies are casts of the weights meanwhile, for one thread at a time. Without
        gradients to compute nothing is done.
        """
        weights = self._weights(owner)
        grad = torch.is_grad_enabled() and any(w.requires_grad for w in weights)
        if not self.sources or not (grad or in_transform()):
            yield
            return
        with self._alone, self._replaced(owner, self._computed(owner)):
            yield

    @contextmanager
    def _replaced(
        self, owner: nn.Module, values: Mapping[str, torch.Tensor]
    ) -> Generator[None]:
        """Put other tensors in place of the copies."""
        before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for name, value in values.items():
            path, _, last = name.rpartition(".")
            kept: Any = module_parts.buffers(owner.get_submodule(path))
            before.append((kept, last, kept[last]))
            kept[last] = value
        try:
            yield
        finally:
            for kept, last, held in before:
                kept[last] = held

    def _computed(self, owner: nn.Module) -> Mapping[str, torch.Tensor]:
        """Return the copies, computed from the weights as they are now."""
        if self._compute is None:
            self._compute = type(GraphModule(owner, self.recipe())).forward
        return self._compute(owner)

    def outdate(self) -> None:
        """Compute the copies again before the next call."""
        self._state = ()

    def _weights(self, owner: nn.Module) -> Iterator[torch.Tensor]:
        return (attribute(owner, name) for name in self.sources)

    def _marks(self, owner: nn.Module) -> tuple[Mark, ...]:
        return tuple(map(Mark, self._weights(owner)))

    def _holds(self, owner: nn.Module) -> bool:
        return all(map(Mark.holds, self._state, self._weights(owner)))
