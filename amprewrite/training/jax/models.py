"""Models that change when they are called, of ``flax.nnx``, as arrays and back."""

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.modules.functions import calling
from amprewrite.training.jax.trees import select_tree


def _nnx() -> Any:
    """Return ``flax.nnx``; None if it is not loaded, so that there is no model."""
    return sys.modules.get("flax.nnx")


@dataclass(frozen=True)
class Models:
    """The models among positional arguments.

    Attributes:
        models: By position.
        parts: By position: structure, parameters and other state of the model.
    """

    models: Mapping[int, Any]
    parts: Mapping[int, tuple[Any, Any, Any]]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.models)

    @property
    def held(self) -> dict[int, tuple[Any, Any]]:
        """Structure and state other than parameters, by position."""
        return {i: (parts[0], parts[2]) for i, parts in self.parts.items()}

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with parameters in the place of models."""
        return tuple(
            self.parts[index][1] if index in self.parts else arg
            for index, arg in enumerate(args)
        )

    def update(self, finite: Any, state: Mapping[int, Any] | None) -> None:
        """Write the new state into the models, where gradients are finite."""
        for index, new in (state or {}).items():
            kept = select_tree(finite, new, self.parts[index][2])
            _nnx().update(self.models[index], kept)


def held_models(args: tuple[Any, ...]) -> Models:
    """Return the models among positional arguments."""
    nnx = _nnx()
    if nnx is None:
        return Models({}, {})
    models = {i: arg for i, arg in enumerate(args) if isinstance(arg, nnx.Module)}
    parts = {i: tuple(nnx.split(m, nnx.Param, ...)) for i, m in models.items()}
    return Models(models, parts)


def pure(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays that does what ``fun`` does with models.

    Its first argument is what :attr:`Models.held` gives. It gives what ``fun`` does,
    and the state of the models afterwards, by position.
    """

    @functools.wraps(fun)
    def run(held: Mapping[int, Any], *args: Any, **kwargs: Any) -> Any:
        nnx = _nnx()
        models = {
            index: nnx.merge(graphdef, args[index], rest, copy=True)
            for index, (graphdef, rest) in held.items()
        }
        given = tuple(models.get(index, arg) for index, arg in enumerate(args))
        with calling(fun, given, kwargs):
            made = fun(*given, **kwargs)
        return made, {i: nnx.state(m, nnx.Not(nnx.Param)) for i, m in models.items()}

    del run.__wrapped__  # it has one argument more
    return run
