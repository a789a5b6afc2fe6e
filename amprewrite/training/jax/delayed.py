"""Products in 8 bits with delayed scales, for JAX: the state goes in and out."""

from functools import partial
from typing import Any, NamedTuple

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.training.delayed import DelayedRule

Array = Any


class DelayedScale(NamedTuple):
    """State of the scale of one tensor, a pytree.

    Attributes:
        amaxes: The largest numbers of earlier steps, float32, the last one first.
        saturated: Number of elements that were beyond the range so far, a float32.
    """

    amaxes: Array
    saturated: Array


class DelayedScales(NamedTuple):
    """State of one product, a pytree.

    Attributes:
        left: That of the first operand.
        right: That of the second one.
        gradient: That of the gradient of the result.
    """

    left: DelayedScale
    right: DelayedScale
    gradient: DelayedScale

    @classmethod
    def init(cls, rule: DelayedRule) -> "DelayedScales":
        """Return a state with an empty history."""
        empty = DelayedScale(jnp.zeros(rule.history), jnp.zeros(()))
        return cls(empty, empty, empty)

    def after(self, cotangent: "DelayedScales") -> "DelayedScales":
        """Return the state for the next step.

        Args:
            cotangent: The gradient of the loss for the state that went in: in the place
                of the gradient's state it has the new one.
        """
        return self._replace(gradient=cotangent.gradient)


def delayed_dot(
    left: Array,
    right: Array,
    scales: DelayedScales,
    rule: DelayedRule,
    forward: str = "float8_e4m3fn",
    backward: str = "float8_e5m2",
) -> tuple[Array, DelayedScales]:
    """Multiply in 8 bits by the scales of earlier steps.

    The derivative of the rounding is that of the identity. Differentiate for ``scales``
    too, and take ``made.after(gradient)`` for the next step, where ``made`` is the
    state that comes back: the backward pass has no other way to hand its largest number
    out.

    Args:
        left: A float array of shape [..., k].
        right: A float matrix of shape [k, n].
        scales: The state.
        rule: The rule of all three scales.
        forward: Format of the operands.
        backward: Format of the gradient of the result.

    Returns:
        The product, of shape [..., n] and the dtype of ``left``, and the state with the
        largest numbers of the operands.

    Raises:
        ArgumentError: A format is unknown.
    """
    return _dot(left, right, scales, rule, forward, backward)


def _rounded(
    x: Array, scale: DelayedScale, rule: DelayedRule, name: str
) -> tuple[Array, DelayedScale]:
    if not x.size:
        return x, scale
    wide = x.astype(jnp.float32)
    made, amaxes, beyond = rule.apply(wide, scale.amaxes, name, jnp)
    counted = scale.saturated + beyond.astype(jnp.float32)
    return made.astype(x.dtype), DelayedScale(amaxes, counted)


def _forward(
    left: Array, right: Array, scales: DelayedScales, rule: DelayedRule, *names: str
) -> tuple[Any, Any]:
    one, of_left = _rounded(left, scales.left, rule, names[0])
    two, of_right = _rounded(right, scales.right, rule, names[0])
    made = DelayedScales(of_left, of_right, scales.gradient)
    return (one @ two, made), (one, two, scales)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _dot(*given: Any) -> Any:
    return _forward(*given)[0]


def _backward(
    rule: DelayedRule, _forward: str, name: str, saved: Any, cotangents: Any
) -> tuple[Array, Array, DelayedScales]:
    one, two, scales = saved
    rounded, state = _rounded(cotangents[0], scales.gradient, rule, name)
    flat, rows = (x.reshape(-1, x.shape[-1]) for x in (rounded, one))
    zeros = jax.tree.map(jnp.zeros_like, scales)
    return rounded @ two.T, rows.T @ flat, zeros._replace(gradient=state)


_dot.defvjp(_forward, _backward)
