"""Lost updates of optax, or of any optimizer that gives updates to add."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.errors import ArgumentError
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.frameworks.jaxpr.compat.untyped import tree_util
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.training.lost import UpdateCount, UpdateCounts, count_lost

Tree = Any


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
