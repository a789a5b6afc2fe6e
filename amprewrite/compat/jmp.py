"""The public names of jmp 0.0.4: loss scales, casts of trees, policies of dtypes.

Differences, all on purpose: a scale is kept in float32, also one given as float16 (jmp
fails in ``adjust``); the minimum survives copies of the pytree (jmp loses it); float16
values are scaled and unscaled in float32; gradients are divided by the scale, not
multiplied by its inverse, which is flushed to zero for large scales.

Kept, so that programs and checkpoints of jmp still work: the leaves of a scale (two if
it is dynamic, else none), the warning about a scale that is no float, and the errors,
which are AssertionErrors.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amprewrite.errors import warn
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.training import jax as training
from amprewrite.training.jax import NoOpLossScale, all_finite
from amprewrite.training.jax.scales import (
    UNKNOWN,
    Scaling,
    register,
)

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "all_finite",
    "cast_to_full",
    "cast_to_half",
    "get_policy",
    "half_dtype",
    "select_tree",
]

Tree = Any
"""Any pytree."""

NAMES = {
    "bfloat16": ("bf16", "bfloat16"),
    "float16": ("f16", "float16"),
    "float32": ("full", "f32", "float32"),
    "float64": ("f64", "float64"),
}
"""Names of each dtype in a policy string; the first is the one that is printed."""

KEYS = {"p": 0, "params": 0, "c": 1, "compute": 1, "o": 2, "output": 2}
"""Keys of a policy string, and the index of the field that each sets."""


@dataclass(frozen=True)
class DynamicLossScale(training.DynamicLossScale):
    """Dynamic loss scale: grows after ``period`` finite steps, shrinks after others.

    A pytree of ``loss_scale`` and ``counter``, as jmp's is.
    """

    min_loss_scale: float = 1.0

    def __post_init__(self) -> None:
        """Validate the fields; warn about a scale or a minimum that is no float.

        Raises:
            ValueError: The scale is no finite scalar above zero, or a limit is out of
                its range.
        """
        for name in ("loss_scale", "min_loss_scale"):
            dtype = jnp.result_type(getattr(self, name))
            if not jnp.issubdtype(dtype, jnp.floating):
                msg = f"Expected floating type for {name}, got {dtype}"
                warn(msg)
        super().__post_init__()
        object.__setattr__(self, "culprit", 0)  # is no leaf

    def adjust(self, grads_finite: Any, culprit: Any = UNKNOWN) -> "DynamicLossScale":
        """Return the scale after a step with finite, or not finite, gradients.

        Raises:
            AssertionError: ``grads_finite`` is no scalar.
        """
        _check_scalar("adjust: grads_finite", grads_finite)
        made: Any = super().adjust(grads_finite, culprit)
        object.__setattr__(made, "culprit", 0)
        return made


@dataclass(frozen=True)
class StaticLossScale(Scaling):
    """Constant loss scale, part of the tree structure of its pytree: it has no leaves.

    Attributes:
        loss_scale: The scale, a number or a scalar, kept as it is given.
    """

    loss_scale: Any

    def adjust(self, grads_finite: Any) -> "StaticLossScale":
        """Return ``self``: the scale is constant."""
        del grads_finite
        return self

    @property
    def multiplier(self) -> Any:
        """The scale, a float32 scalar."""
        return jnp.asarray(self.loss_scale, jnp.float32)


register(DynamicLossScale, ("loss_scale", "counter"))
register(StaticLossScale, ())

LossScale = NoOpLossScale | StaticLossScale | DynamicLossScale
"""Any of them."""


def select_tree(pred: Any, a: Tree, b: Tree) -> Tree:
    """Return ``a`` where ``pred`` is true, else ``b``; see training.jax.select_tree.

    Raises:
        AssertionError: ``pred`` is no bool scalar.
        ValueError: The trees differ in a dtype or shape.
    """
    _check_scalar("select_tree: pred", pred)
    if jnp.result_type(pred) != jnp.bool_:
        msg = f"select_tree: expected boolean scalar, found {jnp.result_type(pred)}"
        raise AssertionError(msg)
    return training.select_tree(pred, a, b)


def _check_scalar(what: str, found: Any) -> None:
    if jnp.ndim(found):
        msg = f"{what}: expected boolean scalar, found shape {jnp.shape(found)}"
        raise AssertionError(msg)


@dataclass(frozen=True)
class Policy:
    """The dtypes of parameters, of computation and of outputs.

    Its string is a policy of :func:`amprewrite.convert` too, which decides for each op
    where this casts whole trees.
    """

    param_dtype: Any
    compute_dtype: Any
    output_dtype: Any

    def cast_to_param(self, x: Tree) -> Tree:
        """Return a tree with its floats in the dtype of parameters."""
        return _cast(x, self.param_dtype)

    def cast_to_compute(self, x: Tree) -> Tree:
        """Return a tree with its floats in the dtype of computation."""
        return _cast(x, self.compute_dtype)

    def cast_to_output(self, x: Tree) -> Tree:
        """Return a tree with its floats in the dtype of outputs."""
        return _cast(x, self.output_dtype)

    def with_output_dtype(self, output_dtype: Any) -> "Policy":
        """Return the policy with another dtype of outputs."""
        return replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        dtypes = (self.param_dtype, self.compute_dtype, self.output_dtype)
        names = [NAMES[jnp.dtype(dtype).name][0] for dtype in dtypes]
        return ",".join(f"{key}={name}" for key, name in zip("pco", names, strict=True))


def get_policy(policy_name: str) -> Policy:
    """Return a policy by its string, such as ``params=f32,compute=f16,output=f32``.

    Parameters are float32 where nothing is said, computation follows parameters, and
    outputs follow computation. A dtype alone (``half``) is all three.

    Raises:
        ValueError: There is no such key or dtype.
    """
    if "=" not in policy_name:
        return Policy(*(_dtype(policy_name),) * 3)
    found: list[Any] = [jnp.float32, None, None]
    for part in policy_name.split(","):
        key, _, value = part.partition("=")
        if key not in KEYS:
            msg = (
                f"unknown key {key!r} in {policy_name!r}; want params, compute or "
                f"output, or their first letters"
            )
            raise ValueError(msg)
        found[KEYS[key]] = _dtype(value)
    param, compute, output = found
    compute = param if compute is None else compute
    return Policy(param, compute, compute if output is None else output)


def _dtype(name: str) -> Any:
    if name == "half":
        return half_dtype()
    known = [dtype for dtype, names in NAMES.items() if name in names]
    if not known:
        names = ", ".join(name for names in NAMES.values() for name in names)
        msg = f"Unknown dtype {name!r}; want half, {names}"
        raise ValueError(msg)
    return getattr(jnp, known[0])


def half_dtype() -> Any:
    """Return the 16-bit dtype of the backend: bfloat16 for TPUs, else float16."""
    on_tpu = jax.local_devices()[0].platform == "tpu"
    return jnp.bfloat16 if on_tpu else jnp.float16


def cast_to_full(tree: Tree) -> Tree:
    """Return a tree with its floats in float32."""
    return _cast(tree, jnp.float32)


def cast_to_half(tree: Tree) -> Tree:
    """Return a tree with its floats in :func:`half_dtype`."""
    return _cast(tree, half_dtype())


def _cast(tree: Tree, dtype: Any) -> Tree:
    def cast(leaf: Any) -> Any:
        is_array = isinstance(leaf, (np.ndarray, jax.Array))
        floats = is_array and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if floats else leaf

    return tree_util.tree_map(cast, tree)
