"""The public names of mpx 0.1.8: gradients in mixed precision for Equinox.

Where mpx casts all arguments to 16 bits, functions are converted here: each op has the
precision that the policy gives it, so that softmax, norms and losses need no wrapper,
and arguments, statistics and gradients stay float32.

Other differences, all on purpose: gradients and values are unscaled with the scale that
they were made with (mpx halves them whenever the scale grows);
``set_half_precision_datatype`` accepts strings; results of functions are cast in any
structure; ``force_full_precision`` returns the 16-bit dtype that is set, not always
float16; ``grads_finite`` is computed without mixed precision too; values are scaled in
float32.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.marks import full_precision
from amprewrite.training.jax import all_finite, optimizer_update, select_tree
from amprewrite.training.jax.gradients import (
    Asked,
    gradients_of,
    scaled_gradients,
    without_value,
)
from amprewrite.training.jax.scales import (
    NoOpLossScale,
    Scaling,
    register,
)
from amprewrite.training.state import RULES, ScaleRule

__version__ = "0.1.8"  # of mpx

__all__ = [
    "DynamicLossScaling",
    "all_finite",
    "calculate_scaled_grad",
    "cast_function",
    "cast_to_bfloat16",
    "cast_to_float16",
    "cast_to_float32",
    "cast_to_full_precision",
    "cast_to_half_precision",
    "cast_tree",
    "filter_grad",
    "filter_value_and_grad",
    "force_full_precision",
    "half_precision_datatype",
    "optimizer_update",
    "scaled",
    "select_tree",
    "set_half_precision_datatype",
]

Tree = Any
"""Any pytree."""

Function = Callable[..., Any]
"""Any function."""

HALVES = ("float16", "bfloat16")
"""Names of the 16-bit dtypes."""

POLICIES = {"float16": "fp16", "bfloat16": "bf16"}
"""The shipped policy for each 16-bit dtype."""


@dataclass
class _Setting:
    half: str = "float16"


_setting = _Setting()


def __getattr__(name: str) -> Any:
    """Return a constant, computed at its first use, or the current 16-bit dtype."""
    match name:
        case "HALF_PRECISION_DATATYPE":
            return half_precision_datatype()
        case "FLOAT16_MAX":
            return jnp.asarray(float(jnp.finfo(jnp.float16).max), jnp.float32)
        case "BFLOAT16_MAX":
            return jnp.asarray(float(jnp.finfo(jnp.bfloat16).max), jnp.float32)
        case _:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)


def set_half_precision_datatype(datatype: Any) -> None:
    """Set the 16-bit dtype, by its name or as a dtype.

    Raises:
        ValueError: The name is none of float16 and bfloat16.
        TypeError: It is another dtype, or none.
    """
    if isinstance(datatype, str):
        name, kind = datatype, ValueError
    else:
        name, kind = _name(datatype), TypeError
    if name not in HALVES:
        msg = f"half precision is {datatype!r}; want float16 or bfloat16"
        raise kind(msg)
    _setting.half = name


def _name(datatype: Any) -> str:
    try:
        return str(jnp.dtype(datatype).name)
    except TypeError:
        return ""


def half_precision_datatype() -> Any:
    """Return the 16-bit dtype; float16 unless it was set."""
    return getattr(jnp, _setting.half)


def cast_tree(tree: Tree, dtype: Any) -> Tree:
    """Return a tree with its float16, bfloat16 and float32 arrays in ``dtype``."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, jax.Array)):
            return leaf
        return leaf.astype(dtype) if _name(leaf.dtype) in (*HALVES, "float32") else leaf

    return tree_util.tree_map(cast, tree)


def cast_to_float32(x: Tree) -> Tree:
    """Return a tree with its floats in float32."""
    return cast_tree(x, jnp.float32)


def cast_to_float16(x: Tree) -> Tree:
    """Return a tree with its floats in float16."""
    return cast_tree(x, jnp.float16)


def cast_to_bfloat16(x: Tree) -> Tree:
    """Return a tree with its floats in bfloat16."""
    return cast_tree(x, jnp.bfloat16)


def cast_to_full_precision(x: Tree) -> Tree:
    """Return a tree with its floats in float32."""
    return cast_tree(x, jnp.float32)


def cast_to_half_precision(x: Tree) -> Tree:
    """Return a tree with its floats in the 16-bit dtype that is set."""
    return cast_tree(x, half_precision_datatype())


def cast_function(func: Function, dtype: Any, return_dtype: Any = None) -> Function:
    """Return ``func`` with its arguments in ``dtype``, its result in ``return_dtype``.

    Args:
        func: A function of any pytrees, to any pytree.
        dtype: Dtype of the arguments.
        return_dtype: Dtype of the result; None for ``dtype``.
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast_tree((args, kwargs), dtype)
        result = func(*args, **kwargs)
        return cast_tree(result, dtype if return_dtype is None else return_dtype)

    return run


def force_full_precision(func: Function, return_dtype: Any = None) -> Function:
    """Return ``func`` computed in float32, in a converted function too.

    Args:
        func: A function of any pytrees, to any pytree.
        return_dtype: Dtype of the result; None for the 16-bit dtype that is set.
    """
    marked = full_precision(func)

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        low = half_precision_datatype() if return_dtype is None else return_dtype
        return cast_function(marked, jnp.float32, low)(*args, **kwargs)

    return run


@dataclass(frozen=True)
class DynamicLossScaling(Scaling):
    """Dynamic loss scale: grows after ``period`` finite steps, shrinks after others.

    A pytree of ``loss_scaling``, ``min_loss_scaling`` and ``counter``; the scale is at
    most the largest float16, as in mpx.

    Attributes:
        loss_scaling: The scale; kept as a float32 scalar.
        min_loss_scaling: Least scale; kept as a float32 scalar.
        factor: Factor of growth, and divisor after a step that is not finite.
        period: Number of finite steps in a row after which the scale grows.
        counter: Number of finite steps in a row.
    """

    loss_scaling: Any
    min_loss_scaling: Any
    factor: int = 2
    period: int = 2000
    counter: Any = None

    def __post_init__(self) -> None:
        """Convert the scales to float32 scalars, and the counter to an int32 scalar.

        Raises:
            ValueError: A scale is no scalar, or a number is out of its range.
        """
        for name in ("loss_scaling", "min_loss_scaling"):
            scale = jnp.asarray(getattr(self, name), jnp.float32)
            if scale.ndim:
                msg = f"{name} has shape {scale.shape}; want a scalar"
                raise ValueError(msg)
            object.__setattr__(self, name, scale)
        count = 0 if self.counter is None else self.counter
        object.__setattr__(self, "counter", jnp.asarray(count, jnp.int32))
        _ = self.rule

    @property
    def rule(self) -> ScaleRule:
        """The rule that changes the scale after a step, before the scale is clipped."""
        return ScaleRule(growth=self.factor, backoff=None, interval=self.period)

    @property
    def multiplier(self) -> Any:
        """The scale, a float32 scalar."""
        return self.loss_scaling

    def adjust(self, grads_finite: Any) -> "DynamicLossScaling":
        """Return the scale after a step with finite, or not finite, gradients.

        Args:
            grads_finite: Whether all gradients are finite, as a bool scalar.
        """
        finite, now = jnp.asarray(grads_finite), self.loss_scaling
        scale, count = self.rule.step(now, self.counter, finite, jnp.where)
        scale = jnp.clip(scale, self.min_loss_scaling, RULES["mpx"].maximum)
        return DynamicLossScaling(
            scale, self.min_loss_scaling, self.factor, self.period, count
        )


register(DynamicLossScaling, ("loss_scaling", "min_loss_scaling", "counter"))


def scaled(func: Function, scaling: Any, has_aux: bool = False) -> Function:  # noqa: FBT001, FBT002  # the signature of mpx
    """Return ``func`` with its value multiplied by the scale, and aux unchanged."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        return (scaling.scale(made[0]), made[1]) if has_aux else scaling.scale(made)

    return run


def _asked(
    func: Function, scaling: Any, *, has_aux: bool, use_mixed_precision: bool
) -> Asked:
    policy = POLICIES[_setting.half] if use_mixed_precision else None
    scale = scaling if use_mixed_precision else NoOpLossScale()
    # mpx asks for a scale with each dtype: a hint that bfloat16 needs none is no use
    return Asked(func, policy, scale, has_aux=has_aux, filters=True, advises=False)


def calculate_scaled_grad(
    func: Function,
    scaling: Any,
    has_aux: bool = False,  # noqa: FBT001, FBT002  # the signature of mpx
    use_mixed_precision: bool = True,  # noqa: FBT001, FBT002  # the signature of mpx
) -> Function:
    """Return a function that computes the scaled value, aux, and scaled gradients."""
    asked = _asked(
        func, scaling, has_aux=has_aux, use_mixed_precision=use_mixed_precision
    )

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        grads, made, _, _ = scaled_gradients(asked, args, kwargs)
        if has_aux:
            return (asked.loss_scale.scale(made[0]), made[1]), grads
        return asked.loss_scale.scale(made), grads

    return run


def filter_value_and_grad(
    func: Function,
    scaling: Any,
    has_aux: bool = False,  # noqa: FBT001, FBT002  # the signature of mpx
    use_mixed_precision: bool = True,  # noqa: FBT001, FBT002  # the signature of mpx
) -> Function:
    """Return a function that computes the value of ``func`` and its gradients.

    The gradients are those of the float arrays in the first argument. The function
    returns ``(value, scaling, grads_finite, grads)``, with ``has_aux`` ``((value, aux),
    scaling, grads_finite, grads)``. Without mixed precision nothing is converted or
    scaled, and the scaling stays as it is.
    """
    asked = _asked(
        func, scaling, has_aux=has_aux, use_mixed_precision=use_mixed_precision
    )
    return _with_scaling(gradients_of(asked), 1, scaling, adjusts=use_mixed_precision)


def filter_grad(
    func: Function,
    scaling: Any,
    has_aux: bool = False,  # noqa: FBT001, FBT002  # the signature of mpx
    use_mixed_precision: bool = True,  # noqa: FBT001, FBT002  # the signature of mpx
) -> Function:
    """Return a function that computes the gradients of ``func``.

    It returns ``(scaling, grads_finite, grads)``, with ``has_aux`` aux last; see
    :func:`filter_value_and_grad`.
    """
    asked = _asked(
        func, scaling, has_aux=has_aux, use_mixed_precision=use_mixed_precision
    )
    return _with_scaling(without_value(asked), 0, scaling, adjusts=use_mixed_precision)


def _with_scaling(
    run: Function, place: int, scaling: Any, *, adjusts: bool
) -> Function:
    """Return ``run`` with the old ``scaling`` in its result where none is adjusted."""
    if adjusts:
        return run

    @functools.wraps(run)
    def unadjusted(*args: Any, **kwargs: Any) -> Any:
        made = run(*args, **kwargs)
        return (*made[:place], scaling, *made[place + 1 :])

    return unadjusted
