"""Stateful models of ``flax.nnx``, split into arrays and merged again."""

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
        """Whether there are models."""
        return bool(self.models)

    @property
    def held(self) -> dict[int, tuple[Any, Any]]:
        """Structure and state other than parameters, by position."""
        return {i: (parts[0], parts[2]) for i, parts in self.parts.items()}

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with each model replaced by its parameters."""
        return tuple(
            self.parts[index][1] if index in self.parts else arg
            for index, arg in enumerate(args)
        )

    def update(self, finite: Any, state: Mapping[int, Any] | None) -> None:
        """Write the new state into the models, if the gradients are finite."""
        for index, new in (state or {}).items():
            kept = select_tree(finite, new, self.parts[index][2])
            _nnx().update(self.models[index], kept)


def held_models(args: tuple[Any, ...]) -> Models:
    """Return the models among positional arguments, split into parts."""
    nnx = _nnx()
    if nnx is None:
        return Models({}, {})
    models = {i: arg for i, arg in enumerate(args) if isinstance(arg, nnx.Module)}
    parts = {i: tuple(nnx.split(m, nnx.Param, ...)) for i, m in models.items()}
    return Models(models, parts)


def pure(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fun`` as a pure function of the models' arrays.

    Its first argument is :attr:`Models.held`. It returns the result of ``fun`` and the
    new state of the models, by position.
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
