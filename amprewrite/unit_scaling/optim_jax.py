"""Optimizers of optax with the learning rates of u-muP.

Types of the parameters are a tree of words like that of the parameters: arrays of JAX
carry no attributes.
"""

from typing import Any, cast

import optax  # pyright: ignore[reportMissingTypeStubs]

from amprewrite.errors import UnitScalingError
from amprewrite.frameworks.jaxpr.compat.untyped import jax
from amprewrite.unit_scaling.learning_rates import (
    Optimizer,
    learning_rate_multiplier,
)

Tree = Any
"""A pytree; of types, with a word for each parameter or for a whole subtree."""

_optax: Any = optax


def scale_by_mup(
    types: Tree,
    optimizer: Optimizer = "adam",
    *,
    depths: Tree = None,
    readout_constraint: str | None = None,
) -> optax.GradientTransformation:
    """Return the transformation that multiplies updates by u-muP's learning rates.

    Args:
        types: Type of each parameter, see ``MupType``: a tree like the parameters, or
            a prefix of it. Weights are (out, in, ...), as in ``functional_jax``.
        optimizer: ``adam``, also for AdamW, or ``sgd``.
        depths: Number of layers of the stack that a parameter is in, as ``types``;
            zeros, and None for all, for parameters outside of stacks.
        readout_constraint: Constraint of the model's ``linear_readout``, for SGD.

    Raises:
        UnitScalingError: When it is initialised: the trees differ, or a type is
            unknown.
    """

    def scaled_one(update: Any, kind: Any, depth: Any) -> Any:
        return update * learning_rate_multiplier(
            kind,
            update.shape,
            optimizer,
            depth=depth or None,
            readout_constraint=readout_constraint,
        )

    def scaled(updates: Tree) -> Tree:
        kinds = _spread(types, updates, "types")
        layers = _spread(0 if depths is None else depths, updates, "depths")
        return jax.tree.map(scaled_one, updates, kinds, layers)

    def init(params: Tree) -> Any:
        jax.eval_shape(scaled, params)  # finds mistakes now
        return _optax.EmptyState()

    def update(updates: Tree, state: Any, _params: Tree = None) -> tuple[Tree, Any]:
        return scaled(updates), state

    return cast(
        "optax.GradientTransformation", _optax.GradientTransformation(init, update)
    )


def _spread(prefix: Tree, tree: Tree, name: str) -> Tree:
    """Return ``prefix`` with each leaf repeated for the subtree in its place.

    Raises:
        UnitScalingError: It is no prefix of the tree.
    """

    def repeated(leaf: Any, part: Tree) -> Tree:
        structure = jax.tree.structure(part)
        return jax.tree.unflatten(structure, [leaf] * structure.num_leaves)

    try:
        return jax.tree.map(repeated, prefix, tree)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        msg = f"{name} is no tree like the parameters, nor a prefix of it: {reason}"
        raise UnitScalingError(msg) from error


def adam(
    learning_rate: Any, types: Tree, *, depths: Tree = None, **rest: Any
) -> optax.GradientTransformation:
    """Return Adam with u-muP's learning rates; ``rest`` as ``optax.scale_by_adam``."""
    return _optax.chain(
        _optax.scale_by_adam(**rest),
        scale_by_mup(types, depths=depths),
        _optax.scale_by_learning_rate(learning_rate),
    )


def adamw(
    learning_rate: float,
    types: Tree,
    *,
    depths: Tree = None,
    weight_decay: float = 0.0,
    independent_weight_decay: bool = True,
    **rest: Any,
) -> optax.GradientTransformation:
    """Return AdamW with u-muP's learning rates.

    Args:
        learning_rate: That of parameters with multiplier 1; a number. For a schedule,
            chain ``optax.scale_by_schedule`` after it.
        types: See :func:`scale_by_mup`.
        depths: As there.
        weight_decay: Weight decay.
        independent_weight_decay: Whether each step takes the share ``weight_decay`` of
            a weight, whatever its learning rate.
        **rest: As ``optax.scale_by_adam``.

    Raises:
        UnitScalingError: The learning rate is a schedule.
    """
    if callable(learning_rate):
        msg = (
            "learning_rate: found a schedule; want a number, and the schedule after "
            "it: optax.chain(adamw(...), optax.scale_by_schedule(...))"
        )
        raise UnitScalingError(msg)
    adapted = _optax.chain(
        _optax.scale_by_adam(**rest), scale_by_mup(types, depths=depths)
    )
    if independent_weight_decay:
        decayed = [_optax.add_decayed_weights(weight_decay / learning_rate)]
        chained = [adapted, *decayed]
    else:  # the decay is scaled with the learning rate of each parameter
        chained = [
            _optax.scale_by_adam(**rest),
            _optax.add_decayed_weights(weight_decay),
            scale_by_mup(types, depths=depths),
        ]
    return _optax.chain(*chained, _optax.scale_by_learning_rate(learning_rate))


def sgd(
    learning_rate: Any,
    types: Tree,
    *,
    depths: Tree = None,
    momentum: float | None = None,
    readout_constraint: str | None = None,
) -> optax.GradientTransformation:
    """Return SGD with u-muP's learning rates; see :func:`scale_by_mup`."""
    scale = scale_by_mup(
        types, "sgd", depths=depths, readout_constraint=readout_constraint
    )
    trace = _optax.identity() if momentum is None else _optax.trace(momentum)
    return _optax.chain(trace, scale, _optax.scale_by_learning_rate(learning_rate))


# Optimizers of optax with the learning rates of u-muP.

__all__ = ["adam", "adamw", "scale_by_mup", "sgd"]
