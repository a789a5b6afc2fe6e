"""Optimizer steps that are skipped if gradients are not finite; accumulation."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer, varying_as
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax, tree_util
from amprewrite.frameworks.jaxpr.program.program import dtype_name
from amprewrite.training.jax.gradients import adjusted
from amprewrite.training.jax.trees import (
    finite_leaves,
    is_none,
    select_tree,
)
from amprewrite.training.lost import UpdateCount, UpdateCounts, count_lost

Tree = Any
"""Any pytree."""


def optimizer_update(
    model: Tree, optimizer: Any, state: Tree, grads: Tree, grads_finite: Any
) -> tuple[Tree, Tree]:
    """Return the model and the state of the optimizer after a step.

    If gradients are not finite, both are unchanged, bit for bit: parameters, moments
    and counters.

    Args:
        model: Parameters, or a module that holds them; any pytree. With a
            ``flax.nnx.Optimizer`` the ``nnx`` model, which is updated in place.
        optimizer: An optax optimizer, which returns updates to add to the parameters;
            or a ``flax.nnx.Optimizer``, which holds its own state.
        state: State from ``optimizer.init`` or the last step; None for one of ``nnx``.
        grads: Gradients, of the structure of ``model``, or None where it has none.
        grads_finite: Whether they are finite, as a bool scalar.
    """
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(optimizer, nnx.Optimizer):
        _update_in_place(nnx, model, optimizer, grads, grads_finite)
        return model, state
    trained = tree_util.tree_map(
        lambda grad, leaf: None if grad is None else leaf, grads, model, is_leaf=is_none
    )
    updates, new_state = optimizer.update(grads, state, trained)

    def moved(update: Any, leaf: Any) -> Any:
        if update is None:
            return leaf
        return jnp.asarray(leaf + update).astype(jnp.asarray(leaf).dtype)

    new_model = tree_util.tree_map(moved, updates, model, is_leaf=is_none)
    return (
        select_tree(grads_finite, new_model, model),
        select_tree(grads_finite, new_state, state),
    )


def _update_in_place(
    nnx: Any, model: Any, optimizer: Any, grads: Any, grads_finite: Any
) -> None:
    """Update ``model`` and ``optimizer`` in place, and undo it for a skipped step."""
    before = [nnx.state(part) for part in (model, optimizer)]
    before = [tree_util.tree_map(lambda leaf: leaf, state) for state in before]
    optimizer.update(model, grads)
    for part, old in zip((model, optimizer), before, strict=True):
        nnx.update(part, select_tree(grads_finite, nnx.state(part), old))


def accumulate(
    gradients: Callable[[Any], tuple[Any, Any, Any, Tree]],
    batches: Tree,
    *,
    loss_scale: Any,
    axis_name: Any = None,
) -> tuple[Any, Any, Any, Tree]:
    """Return the mean of values and gradients over batches, as of one step.

    Gradients are added up in float32 or wider, one batch after the other in one
    program, and are finite if those of all batches are. The loss scale is adjusted
    once.

    Args:
        gradients: Function of one batch, as :func:`value_and_grad` returns it.
        batches: A pytree of arrays with the batches along the first axis.
        loss_scale: The loss scale that ``gradients`` scales with.
        axis_name: As for :func:`value_and_grad`.

    Returns:
        ``(value, loss_scale, grads_finite, grads)``, or with aux ``((value, aux),
        loss_scale, grads_finite, grads)``, where aux has the batches as first axis.
    """
    count = tree_util.tree_leaves(batches)[0].shape[0]

    def add(total: Tree, batch: Tree) -> tuple[Tree, Any]:
        made, _, finite, grads = gradients(batch)
        return tree_util.tree_map(jnp.add, total, grads), (made, finite)

    def zero(leaf: Any) -> Any:
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        return varying_as(jnp.zeros(leaf.shape, wide), leaf)

    first = tree_util.tree_map(lambda leaf: leaf[0], batches)
    shapes = jax.eval_shape(gradients, first)[3]
    total, (made, finite) = lax.scan(add, tree_util.tree_map(zero, shapes), batches)
    grads = tree_util.tree_map(
        lambda leaf, like: (leaf / count).astype(like.dtype), total, shapes
    )
    flags = finite_leaves(grads, axis_name)
    # another device may have found a gradient that is not finite
    flags &= finite.all() | ~flags.all()
    made = (made[0].mean(), *made[1:]) if isinstance(made, tuple) else made.mean()
    state = adjusted(loss_scale, flags, grads, axis_name)
    return made, state, flags.all(), grads


# Lost updates of optax, or of any optimizer that gives updates to add.


def lost_updates(
    params: Tree,
    updates: Tree,
    format: str | None = None,  # noqa: A002  # the word of the formats
) -> UpdateCounts:
    """Count the updates that the format of the parameters loses.

    Updates are taken as they are given: where an optimizer computes them in the dtype
    of low parameters, they are rounded before. Give it parameters and gradients in
    float32, and ``format``, to ask about exact ones. Arrays are copied to the host.

    Args:
        params: Parameters before the step, any tree of arrays.
        updates: Updates added to them, a tree of the same structure: the result of
            ``optimizer.update`` of optax; leaves may be None.
        format: Name of the format to ask about, such as ``float16``, for parameters
            that are stored in another one; None is the dtype of each parameter.

    Raises:
        ArgumentError: The trees differ in structure or shapes, or are traced.
        PromotionError: There is no such format.
    """
    paths, structure = tree_util.tree_flatten_with_path(params)
    try:
        given = structure.flatten_up_to(updates)
    except (TypeError, ValueError, KeyError) as error:
        msg = f"updates is another tree than params ({error}); want one update for each"
        raise ArgumentError(msg) from error
    found: dict[str, UpdateCount] = {}
    for (path, held), update in zip(paths, given, strict=True):
        name = tree_util.keystr(path, simple=True, separator=".")
        if is_tracer(held) or is_tracer(update):
            msg = (
                f"{name} is traced; want arrays: call lost_updates outside of jit, "
                "with the updates that the step returns"
            )
            raise ArgumentError(msg)
        if update is None or not is_float(dtype_name(held)):
            continue
        if np.shape(held) != np.shape(update):
            msg = (
                f"{name} has the shape {np.shape(held)}, its update "
                f"{np.shape(update)}; want equal shapes"
            )
            raise ArgumentError(msg)
        weights, moved = (np.asarray(x, np.float64) for x in (held, update))
        found[name] = count_lost(weights, moved, format or dtype_name(held))
    return UpdateCounts(found)
