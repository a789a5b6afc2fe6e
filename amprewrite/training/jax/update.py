"""Optimizer steps that are skipped if gradients are not finite; accumulation."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import sys
from collections.abc import Callable
from typing import Any

from amprewrite.frameworks.jaxpr.compat.tracers import varying_as
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, lax, tree_util
from amprewrite.training.jax.gradients import adjusted
from amprewrite.training.jax.trees import (
    finite_leaves,
    is_none,
    select_tree,
)

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
