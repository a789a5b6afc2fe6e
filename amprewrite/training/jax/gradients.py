"""Gradients of converted functions with loss scaling: value_and_grad and grad."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amprewrite.api import convert
from amprewrite.errors import ArgumentError, UnsupportedError, warn
from amprewrite.frameworks.jaxpr.compat.tracers import axes_apart
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.frameworks.jaxpr.convert import converted_function_of
from amprewrite.plan.facts import gradient_format, is_unit_scaled
from amprewrite.policy import Policy, load_policy
from amprewrite.training.jax.scales import (
    UNKNOWN,
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
)
from amprewrite.training.jax.trees import (
    combine,
    finite_leaves,
    held_models,
    is_inexact_array,
    is_traced,
    partition,
    pure,
)
from amprewrite.training.state import advice, is_useful

AnyPolicy = str | Path | Policy | None
"""A policy, as ``convert`` takes it; None if the function is not to be converted."""

Function = Callable[..., Any]
"""Any function."""


@dataclass(frozen=True)
class Asked:
    """Request for a function of gradients: the arguments of :func:`value_and_grad`.

    Attributes:
        fun: The function to differentiate.
        policy: Its policy; None to run it unconverted.
        loss_scale: The loss scale.
        argnums: Positional arguments that are differentiated.
        has_aux: Whether ``fun`` returns auxiliary data beside the value.
        axis_name: Mapped axes over which gradients must be finite on all devices.
        filters: Whether only the float arrays of the first argument are differentiated.
        options: Other arguments of ``convert``.
        told: Hints about the loss scale that were given.
        advises: Whether hints about the loss scale are given.
    """

    fun: Function
    policy: AnyPolicy
    loss_scale: Any
    argnums: int | Sequence[int] = 0
    has_aux: bool = False
    axis_name: Any = None
    filters: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    told: set[str] = field(default_factory=set[str])
    advises: bool = True

    def converted(self, fun: Function) -> Function:
        """Return ``fun`` converted by the policy, or unchanged if it is already."""
        if self.policy is None or converted_function_of(self.fun) is not None:
            return fun
        return convert(fun, self.policy, **self.options)

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled."""
        return not isinstance(self.loss_scale, NoOpLossScale)

    @functools.cached_property
    def plain(self) -> Function:
        """The converted function, for arguments without stateful models."""
        return self.converted(self.fun)

    @functools.cached_property
    def stateful(self) -> Function:
        """The converted function with models as arrays; it returns their new state."""
        return self.converted(pure(self.fun))


def value_and_grad(
    fun: Function,
    policy: AnyPolicy = "bf16",
    *,
    loss_scale: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    axis_name: Any = None,
    **options: Any,
) -> Function:
    """Return a function that computes the value of ``fun`` and its gradients.

    ``fun`` runs converted. The result is called like ``fun`` and can be compiled as a
    whole: nothing in it waits for a value. Gradients are computed with ``loss_scale``,
    divided by that same scale, checked, and have the dtypes of the parameters; the
    value itself is not scaled. Skip the step where ``grads_finite`` is false:
    :func:`optimizer_update`.

    Models of ``flax.nnx`` among the arguments keep their new state (statistics,
    counters of random numbers) if the gradients are finite. Gradients for them are
    states of their parameters, as those of ``nnx.value_and_grad``.

    Args:
        fun: Function that returns a scalar, with ``has_aux`` a pair (scalar, any
            pytree).
        policy: A policy, as for ``amprewrite.convert``. None runs ``fun`` unconverted,
            and so does a function, or a model among its arguments, that is converted
            already.
        loss_scale: A loss scale; None scales nothing, as ``NoOpLossScale()`` does.
        argnums: Positional arguments that are differentiated.
        has_aux: Whether ``fun`` returns auxiliary data beside the value.
        axis_name: Mapped axis, or axes, of ``shard_map`` or ``pmap``: gradients are
            finite if they are on all its devices. They are not averaged. Under
            ``jit`` with shardings it is not needed. ``()`` keeps a loss scale for
            each device.
        **options: Other arguments of ``amprewrite.convert``.

    Returns:
        A function that gives ``(value, loss_scale, grads_finite, grads)``, with
        ``has_aux`` ``((value, aux), loss_scale, grads_finite, grads)``, where
        ``loss_scale`` is the one for the next step.

    Raises:
        ArgumentError: By the function: gradients vary over a mapped axis that
            ``axis_name`` does not have, so that devices would change a
            ``DynamicLossScale`` apart.
        LossScaleError: By the function, where it runs without ``jit``: gradients are
            not finite and the scale is at its minimum. Under ``jit`` nothing can be
            raised; call ``loss_scale.check(parameters)`` where values are read.
        PolicyError: The policy has mistakes.
        UnsupportedError: ``loss_scale`` is no loss scale.
    """
    given = (fun, policy, loss_scale, argnums, has_aux, axis_name)
    return gradients_of(_asked(*given, options=options))


def grad(
    fun: Function,
    policy: AnyPolicy = "bf16",
    *,
    loss_scale: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    axis_name: Any = None,
    **options: Any,
) -> Function:
    """Return a function that computes the gradients of ``fun``, without the value.

    Returns:
        A function that gives ``(loss_scale, grads_finite, grads)``, with ``has_aux``
        ``(loss_scale, grads_finite, grads, aux)``.
    """
    given = (fun, policy, loss_scale, argnums, has_aux, axis_name)
    return without_value(_asked(*given, options=options))


def filter_value_and_grad(
    fun: Function,
    policy: AnyPolicy = "bf16",
    *,
    loss_scale: Any,
    has_aux: bool = False,
    axis_name: Any = None,
    **options: Any,
) -> Function:
    """Return :func:`value_and_grad` of a first argument with leaves of any kind.

    Its float arrays are differentiated, as by ``equinox.filter_value_and_grad``; the
    gradient of every other leaf is None.
    """
    given = (fun, policy, loss_scale, 0, has_aux, axis_name)
    return gradients_of(_asked(*given, filters=True, options=options))


def filter_grad(
    fun: Function,
    policy: AnyPolicy = "bf16",
    *,
    loss_scale: Any,
    has_aux: bool = False,
    axis_name: Any = None,
    **options: Any,
) -> Function:
    """Return :func:`grad` of a first argument with leaves of any kind.

    Its float arrays are differentiated, as by ``equinox.filter_grad``; the gradient of
    every other leaf is None.
    """
    given = (fun, policy, loss_scale, 0, has_aux, axis_name)
    return without_value(_asked(*given, filters=True, options=options))


def _asked(
    fun: Function, policy: AnyPolicy, loss_scale: Any, *rest: Any, **named: Any
) -> Asked:
    """Return the request, after warning about a loss scale that is not needed.

    Raises:
        UnsupportedError: ``loss_scale`` is no loss scale.
    """
    scale = _loss_scale(loss_scale)
    asked = Asked(fun, policy, scale, *rest, **named)
    if policy is not None and asked.scales and converted_function_of(fun) is None:
        found = load_policy(policy)
        if not is_useful(found.low) and not found.contract.backward:
            _tell(asked, advice(found.low, scales=True))
    return asked


def gradients_of(asked: Asked) -> Function:
    """Return the function of values and gradients for a request."""

    @functools.wraps(asked.fun, updated=())
    def gradients(*args: Any, **kwargs: Any) -> Any:
        grads, made, models, state = scaled_gradients(asked, args, kwargs)
        grads = _unscaled(asked.loss_scale, grads)
        flags = finite_leaves(grads, asked.axis_name)
        finite = flags.all()
        models.update(finite, state)
        scale = adjusted(asked.loss_scale, flags, grads, asked.axis_name)
        return made, scale, finite, grads

    return gradients


def scaled_gradients(
    asked: Asked, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return scaled gradients, the result of the function, the models, their state."""
    if any(converted_function_of(arg) is not None for arg in args):
        asked = replace(asked, policy=None)  # the model runs by a plan already
    models = held_models(args)
    given, fixed = models.arguments(args), None
    if asked.filters:
        first, fixed = partition(given[0])
        given = (first, *given[1:])

    def scaled(*arguments: Any, **named: Any) -> Any:
        if asked.filters:
            arguments = (combine(arguments[0], fixed), *arguments[1:])
        if models:
            made, state = asked.stateful(models.held, *arguments, **named)
        else:
            made, state = asked.plain(*arguments, **named), None
        value, *aux = made if asked.has_aux else (made,)
        return asked.loss_scale.scale(value), ((value, *aux), state)

    differentiate = jax.grad(scaled, asked.argnums, has_aux=True)
    grads, (made, state) = differentiate(*given, **kwargs)
    if asked.advises and asked.policy is not None:
        _advise(asked, asked.stateful if models else asked.plain)
    return grads, made if asked.has_aux else made[0], models, state


def without_value(asked: Asked) -> Function:
    """Return the function of gradients alone for a request."""
    both = gradients_of(asked)

    @functools.wraps(asked.fun, updated=())
    def gradients(*args: Any, **kwargs: Any) -> Any:
        made, *rest = both(*args, **kwargs)
        return (*rest, made[1]) if asked.has_aux else tuple(rest)

    return gradients


def _unscaled(loss_scale: Any, grads: Any) -> Any:
    """Return gradients unscaled in float32 or wider, cast back to their dtypes."""

    def as_before(grad: Any, unscaled: Any) -> Any:
        return unscaled.astype(grad.dtype) if is_inexact_array(grad) else grad

    return tree_util.tree_map(as_before, grads, loss_scale.unscale(grads))


def adjusted(loss_scale: Any, flags: Any, grads: Any, axis_name: Any = None) -> Any:
    """Return the loss scale for the next step.

    Args:
        loss_scale: The loss scale of the step.
        flags: Whether each of the gradients is finite.
        grads: The gradients.
        axis_name: The mapped axes over which ``flags`` were reduced.

    Raises:
        ArgumentError: Devices may have different flags, and so different scales.
        LossScaleError: Where values are known: no smaller scale can help.
    """
    if not isinstance(loss_scale, (NoOpLossScale, StaticLossScale)):
        _refuse_apart(loss_scale, flags, axis_name)
    if not isinstance(loss_scale, DynamicLossScale):
        return loss_scale.adjust(flags.all())
    first = jnp.argmin(flags) + 1 if flags.size else UNKNOWN
    state = loss_scale.adjust(flags.all(), first)
    if not is_traced(state):
        state.check(grads)
    return state


def _refuse_apart(loss_scale: Any, flags: Any, axis_name: Any) -> None:
    """Refuse a scale that devices of a manual mesh would change apart.

    Raises:
        ArgumentError: They may; names the axes.
    """
    several = isinstance(axis_name, (tuple, list))
    named: list[Any] = [*axis_name] if several else [axis_name]
    if not named:
        return
    named = [axis for axis in named if axis is not None]
    like = getattr(loss_scale, "loss_scale", 0.0)
    apart = [axis for axis in axes_apart(flags, like) if axis not in named]
    if apart:
        axes = ", ".join(map(repr, apart))
        passed = "none" if axis_name is None else repr(axis_name)
        want = repr(tuple(named + apart) if named or apart[1:] else apart[0])
        msg = (
            f"devices of the axis {axes} may find other gradients finite, and would "
            f"have different loss scales; found axis_name {passed}, want "
            f"axis_name={want}: a step is skipped by all devices or none; for a loss "
            f"scale of each device want axis_name=()"
        )
        raise ArgumentError(msg)


def _loss_scale(given: Any) -> Any:
    """Return ``given`` as a loss scale; None is ``NoOpLossScale()``.

    Raises:
        UnsupportedError: It is no loss scale.
    """
    if given is None:
        return NoOpLossScale()
    if all(hasattr(given, name) for name in ("scale", "unscale", "adjust")):
        return given
    msg = (
        f"loss_scale is a {type(given).__name__}; want a DynamicLossScale, "
        f"StaticLossScale or NoOpLossScale of amprewrite.training.jax"
    )
    raise UnsupportedError(msg)


def _advise(asked: Asked, run: Function) -> None:
    """Warn about a missing loss scale, or one that does harm, by the plan that ran.

    Whether the function is unit-scaled is known when it was traced.
    """
    runner = converted_function_of(run)
    if runner is None or not runner.plans:
        return
    plan = runner.plan
    given = {"scales": asked.scales, "unit_scaled": is_unit_scaled(plan)}
    low = gradient_format(plan) if asked.scales else plan.low
    _tell(asked, advice(low, **given))


def _tell(asked: Asked, hint: str) -> None:
    """Warn of a hint once."""
    if hint and hint not in asked.told:
        asked.told.add(hint)
        warn(hint)
