"""Low copies of the weights that graphs of dynamo read: one for all graphs.

Dynamo leaves the function of a graph in the variables of a Python module for good. A
copy therefore belongs to its weight: it is freed with the memory of the weight, and the
function of a graph keeps neither alive.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from amprewrite.frameworks.torch_fx.capture.tensor_changes import Mark, Samples
from amprewrite.frameworks.torch_fx.module.state import as_cast, low_copy


@dataclass(frozen=True, eq=False)
class Copy:
    """A low copy of a weight.

    Attributes:
        mark: State of the weight when the copy was made.
        low: The copy.
        memory: Weak reference to the storage of the weight; None without one.
    """

    mark: Mark
    low: torch.Tensor
    memory: Any


class WeightCopies:
    """Copies by weight and dtype, each for as long as the memory of its weight."""

    def __init__(self) -> None:
        """Start without copies."""
        self._known: dict[tuple[int, torch.dtype], Copy] = {}

    def __len__(self) -> int:
        """Return the number of copies."""
        return len(self._known)

    def of(
        self, weight: torch.Tensor, dtype: torch.dtype, *, samples: bool = False
    ) -> Copy:
        """Return the copy of a weight, made anew if a write to it is detected.

        Args:
            weight: The weight.
            dtype: Dtype of the copy.
            samples: Whether elements of the weight are compared, for writes that torch
                does not count.
        """
        key = id(weight), dtype
        known = self._known.get(key)
        if known is not None and known.mark.holds(weight):
            return known
        mark = Mark(weight, samples=samples)
        made = Copy(mark, low_copy(weight, dtype), self._memory(weight, key))
        self._known[key] = made
        return made

    def share(self, weight: torch.Tensor, low: torch.Tensor) -> None:
        """Take ``low`` for the copy of a weight, which has its values."""
        key = id(weight), low.dtype
        self._known[key] = Copy(Mark(weight), low, self._memory(weight, key))

    def forget(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        """Forget the copy of a weight."""
        self._known.pop((id(weight), dtype), None)

    def _memory(self, weight: torch.Tensor, key: tuple[int, torch.dtype]) -> Any:
        """Return a reference to the storage of a weight, with which its copy goes.

        A tensor has no weak reference, as ``torch.utils.swap_tensors`` refuses it then.
        """
        if weight.layout is not torch.strided:
            return None

        def freed(memory: Any) -> None:
            known = self._known.get(key)
            if known is not None and known.memory is memory:
                del self._known[key]

        return weakref.ref(weight.untyped_storage(), freed)


COPIES = WeightCopies()
"""The copies of all graphs."""


class LowWeights:
    """The weights that one graph reads low.

    A copy is valid for as long as its weight lives, in its place in memory, and no
    write to it is detected; once the weights are trained, no copy is kept. Gradients
    pass to the weights.
    """

    def __init__(
        self,
        stored: Mapping[int, torch.dtype],
        trained: Callable[[], bool] | None,
        model: nn.Module | None,
    ) -> None:
        """Start without copies.

        Args:
            stored: Dtypes of the copies, by the position of the weight.
            trained: Returns whether the weights have been trained; None if unknown.
            model: The model that runs the graph; None if that is a function. Elements
                of all weights are compared together, which keeps their memory alive for
                as long as the model lives; without one they are compared one by one.
        """
        self._stored, self._trained = stored, trained
        self._samples: Samples | None = None
        self._weights: tuple[int, ...] = ()
        self._marks: list[Mark] = []
        self._model: Callable[[], nn.Module | None] = lambda: None
        if model is not None:
            self._model = weakref.ref(model)
            weakref.finalize(model, self._forget_samples).atexit = False

    def _forget_samples(self) -> None:
        self._samples, self._weights, self._marks = None, (), []

    def lowered(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of a call, with low weights."""
        args = list(inputs)
        weights = [(index, inputs[index]) for index in self._stored]
        if self._trained is not None and self._trained():
            if self._weights:
                self._forget(weights)
            for index, weight in weights:
                args[index] = weight.to(self._stored[index])
            return args
        for index, copy in self._copies(weights).items():
            weight, args[index] = inputs[index], copy.low
            if torch.is_grad_enabled() and weight.requires_grad:
                args[index] = as_cast(weight, copy.low)
        return args

    def _copies(self, weights: list[tuple[int, Any]]) -> dict[int, Copy]:
        """Return the copies of the weights of a call."""
        keys = tuple([id(weight) for _, weight in weights])
        others = bool(self._weights) and keys != self._weights  # those of another model
        changed = self._samples is not None and not self._samples.hold()
        if others or changed:
            self._forget(weights)
        together, dtypes = self._model() is not None, self._stored
        found = {
            index: COPIES.of(weight, dtypes[index], samples=not together)
            for index, weight in weights
        }
        marks = [copy.mark for copy in found.values()]
        if together and (self._samples is None or marks != self._marks):
            self._samples = Samples(weight for _, weight in weights)
        self._weights, self._marks = keys, marks
        return found

    def _forget(self, weights: list[tuple[int, Any]]) -> None:
        for index, weight in weights:
            COPIES.forget(weight, self._stored[index])
        self._forget_samples()
