"""Unit initialisation of a tree of parameters."""

import re
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.capture.trace import is_array, part_name
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.unit_scaling.rules import STEADY

MATRIX = 2
SEED = 1472
BIAS = re.compile(r"(b|beta|bias)([_\d].*)?|.*bias")
"""Names of arrays that start as zeros."""


def unit_init(params: Any) -> Any:
    """Return parameters with matrices of standard deviation 1, and biases of zero.

    An array is a bias if the last part of its name is ``b``, ``beta`` or ``bias``,
    perhaps with an ending as in ``b1`` or ``bias_k``, or ends in ``bias``. One of
    several dimensions without ``bias`` in its name is one only if all its numbers are
    equal (biases of stacked layers): ``b`` may be a matrix. Others with two dimensions
    or more are divided by their standard deviation, by their root mean square where
    they hardly vary (gains); those of zeros are drawn anew from a fixed seed. Other
    leaves stay as they are: vectors and other constants (gains of normalisations, of
    stacked layers too), and integers.

    Args:
        params: Any tree of arrays: a dict, or an Equinox module.

    Returns:
        A tree of the same structure.
    """
    found, structure = tree_util.tree_flatten_with_path(params)
    leaves = [_unit(path, leaf, index) for index, (path, leaf) in enumerate(found)]
    return tree_util.tree_unflatten(structure, leaves)


def _unit(path: tuple[Any, ...], leaf: Any, index: int) -> Any:
    if not is_array(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    names = [part_name(key) for key in path if not hasattr(key, "idx")]
    plain = [name for name in names if name not in ("value", "")]
    is_bias = bool(plain) and BIAS.fullmatch(plain[-1]) is not None
    if is_bias and (np.ndim(leaf) < MATRIX or "bias" in plain[-1]):
        return jnp.zeros_like(leaf)
    if np.ndim(leaf) < MATRIX or not leaf.size:
        return leaf
    wide = jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
    key = jax.random.fold_in(jax.random.key(SEED), index)
    drawn = jax.random.normal(key, leaf.shape, wide.dtype)
    is_constant = wide.max() == wide.min()  # the deviation of one may be a rounding
    constant = 0 * wide if is_bias else jnp.where(wide == 0, drawn, wide)
    # A gain, such as that of a weight norm, hardly varies.
    is_gain = jnp.abs(wide.mean()) > STEADY * jnp.std(wide)
    size = jnp.where(is_gain, jnp.sqrt(jnp.square(wide).mean()), jnp.std(wide))
    unit = jnp.where(is_constant, constant, wide / size)
    return unit.astype(leaf.dtype)
