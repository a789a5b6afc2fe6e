"""Loss scales as pytrees, with methods to scale, unscale and adjust."""

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from amprewrite.errors import LossScaleError
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, tree_util
from amprewrite.training.jax.trees import is_inexact, is_traced, name_of_leaf
from amprewrite.training.state import FLOAT32_MAX, ScaleRule, stuck

Tree = Any
"""Any pytree."""

UNKNOWN = -1
"""Number for a gradient without a known position."""


class Scaling:
    """Base of loss scales, which multiply and divide the floats of trees."""

    loss_scale: Any

    @property
    def multiplier(self) -> Any:
        """The scale, a float32 scalar."""
        return self.loss_scale

    def scale(self, tree: Tree) -> Tree:
        """Return the floats of ``tree`` times the scale, in float32 or wider."""
        return self._each_float(lambda leaf, by: leaf * by, tree)

    def unscale(self, tree: Tree) -> Tree:
        """Return the floats of ``tree`` over the scale, in float32 or wider.

        It divides, because the inverse of a large scale is a subnormal number, which
        some backends flush to zero.
        """
        return self._each_float(lambda leaf, by: leaf / by, tree)

    def _each_float(self, apply: Callable[[Any, Any], Any], tree: Tree) -> Tree:
        by = self.multiplier

        def applied(leaf: Any) -> Any:
            return apply(leaf, by) if is_inexact(leaf) else leaf

        return tree_util.tree_map(applied, tree)


@dataclass(frozen=True)
class NoOpLossScale:
    """Loss scale of one, for bfloat16, which has the exponent range of float32."""

    @property
    def loss_scale(self) -> float:
        """Always 1.0."""
        return 1.0

    def scale(self, tree: Tree) -> Tree:
        """Return ``tree``."""
        return tree

    def unscale(self, tree: Tree) -> Tree:
        """Return ``tree``."""
        return tree

    def adjust(self, grads_finite: Any) -> "NoOpLossScale":
        """Return ``self``: the scale never changes."""
        del grads_finite
        return self


@dataclass(frozen=True)
class StaticLossScale(Scaling):
    """Constant loss scale.

    Attributes:
        loss_scale: The scale, a number or a scalar; kept as a float32 scalar.
    """

    loss_scale: Any

    def __post_init__(self) -> None:
        """Convert the scale to a float32 scalar.

        Raises:
            ValueError: It is no finite scalar above zero.
        """
        _prepare(self)

    def adjust(self, grads_finite: Any) -> "StaticLossScale":
        """Return ``self``: the scale is constant."""
        del grads_finite
        return self


@dataclass(frozen=True)
class DynamicLossScale(Scaling):
    """Dynamic loss scale: grows after ``period`` finite steps, shrinks after others.

    A pytree of ``loss_scale``, ``counter`` and ``culprit``; the other fields are part
    of its structure, and survive ``tree_map``, ``jit`` and copies. With ``period=2001``
    it behaves as flax's DynamicScale; with ``min_loss_scale=0``, as torch's GradScaler.

    Attributes:
        loss_scale: The scale, a number or a scalar; kept as a float32 scalar.
        counter: Number of finite steps in a row, an int32 scalar.
        period: Number of finite steps in a row after which the scale grows.
        factor: Factor of growth, and without ``backoff`` the divisor after a step
            that is not finite.
        min_loss_scale: Least scale.
        max_loss_scale: Largest scale; growth beyond float32 leaves the scale as it is.
        backoff: Factor after a step that is not finite.
        culprit: 0 in normal operation. If gradients are not finite with the scale at
            its minimum: one more than the position of the first such gradient, -1 if it
            is not known; :meth:`check` reads it.
    """

    loss_scale: Any
    counter: Any = 0
    period: int = 2000
    factor: float = 2
    min_loss_scale: float = 1
    max_loss_scale: float = FLOAT32_MAX
    backoff: float | None = None
    culprit: Any = 0

    def __post_init__(self) -> None:
        """Convert the scale to float32, counts to int32 and limits to numbers.

        Raises:
            ValueError: The scale is no finite scalar above zero, or a limit is out of
                its range.
        """
        for name in ("period", "factor", "min_loss_scale", "max_loss_scale"):
            number = getattr(self, name)
            if not isinstance(number, (int, float)):  # jmp and mpx take arrays
                object.__setattr__(self, name, number.item())
        for name in ("counter", "culprit"):
            count = jnp.asarray(getattr(self, name), jnp.int32)
            object.__setattr__(self, name, count)
        _ = self.rule
        _prepare(self)

    @property
    def rule(self) -> ScaleRule:
        """The rule that changes the scale after a step."""
        return ScaleRule(
            growth=self.factor,
            backoff=self.backoff,
            interval=self.period,
            minimum=self.min_loss_scale,
            maximum=self.max_loss_scale,
            clips=self.max_loss_scale < FLOAT32_MAX,
        )

    def adjust(self, grads_finite: Any, culprit: Any = UNKNOWN) -> "DynamicLossScale":
        """Return the scale after a step with finite, or not finite, gradients.

        Args:
            grads_finite: Whether all gradients are finite: a bool, or a bool scalar.
            culprit: One more than the position of the first gradient that is not.
        """
        finite = jnp.asarray(grads_finite)
        step = self.rule.step(self.loss_scale, self.counter, finite, jnp.where)
        stuck_now = self.rule.is_stuck(self.loss_scale, finite)
        found = jnp.where(stuck_now, jnp.asarray(culprit, jnp.int32), 0)
        return _with(self, loss_scale=step[0], counter=step[1], culprit=found)

    def check(self, parameters: Tree = None) -> None:
        """Raise if the last step was not finite with the scale at its minimum.

        It reads values, so call it outside of ``jit``, whenever the loss is read.

        Args:
            parameters: The differentiated parameters, or their gradients, to name the
                parameter in the message.

        Raises:
            LossScaleError: No smaller scale can help.
        """
        found = int(self.culprit)
        if not found:
            return
        name = name_of_leaf(parameters, found - 1)
        raise LossScaleError(stuck(float(self.loss_scale), name), name)


LossScale = NoOpLossScale | StaticLossScale | DynamicLossScale
"""Any of them."""


def _prepare(state: Any) -> None:
    given = state.loss_scale
    taken = jnp.asarray(given, jnp.float32)
    known = not is_traced(taken)
    if taken.ndim or (known and not (jnp.isfinite(taken) and taken > 0)):
        msg = (
            f"{type(state).__name__}: loss_scale is {given}; want one finite number "
            f"above zero"
        )
        raise ValueError(msg)
    object.__setattr__(state, "loss_scale", taken)
    tell_flax(state.__class__)


def _with(state: Any, **changed: Any) -> Any:
    """Return a copy with some fields replaced, unchecked: leaves may be anything."""
    made: Any = object.__new__(state.__class__)
    for field in fields(state):
        value = changed.get(field.name, getattr(state, field.name))
        object.__setattr__(made, field.name, value)
    return made


DATA: dict[type, tuple[str, ...]] = {
    NoOpLossScale: (),
    StaticLossScale: ("loss_scale",),
    DynamicLossScale: ("loss_scale", "counter", "culprit"),
}
"""Names of the array fields, by class."""


def register(kind: Any, data: tuple[str, ...]) -> None:
    """Register a dataclass as a pytree with named leaves, for checkpoints.

    Args:
        kind: The class.
        data: Its fields that are leaves; the others are part of the structure.
    """
    meta = tuple(f.name for f in fields(kind) if f.name not in data)

    def with_keys(state: Any) -> tuple[Any, tuple[Any, ...]]:
        keyed = [(tree_util.GetAttrKey(n), getattr(state, n)) for n in data]
        return tuple(keyed), tuple(getattr(state, n) for n in meta)

    def unflatten(held: tuple[Any, ...], leaves: Any) -> Any:
        made = object.__new__(kind)
        for name, value in [*zip(meta, held, strict=True), *zip(data, leaves)]:  # noqa: B905  # JAX checks the number of leaves
            object.__setattr__(made, name, value)
        return made

    tree_util.register_pytree_with_keys(kind, with_keys, unflatten)


for _kind, _data in DATA.items():
    register(_kind, _data)


@functools.cache
def _register_with_flax(flax: Any, kind: type) -> None:
    names = DATA[kind]

    def to_dict(state: Any) -> dict[str, Any]:
        return {name: getattr(state, name) for name in names}

    def from_dict(state: Any, stored: Mapping[str, Any]) -> Any:
        return _with(state, **{name: stored[name] for name in names})

    flax.register_serialization_state(kind, to_dict, from_dict)


def tell_flax(kind: type) -> None:
    """Register a loss scale with flax, if it is loaded, for its checkpoints."""
    flax: Any = sys.modules.get("flax.serialization")
    if flax is not None and kind in DATA:
        _register_with_flax(flax, kind)
