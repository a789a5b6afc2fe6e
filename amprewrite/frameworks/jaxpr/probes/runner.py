"""Run a JAX function on one set of arguments, and return its arrays."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.capture.output_paths import named_arrays
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.probes.reference_dtypes import is_inexact
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.measure.runs import Array, Run

Flat = Callable[..., Any]
"""Function of the arrays of a call, in order; it returns the call's result."""


def to_array(value: Any) -> Array:
    """Return a float array as f64; a complex one as pairs in a new last dimension."""
    held = np.asarray(value)
    if np.iscomplexobj(held):
        wide = held.astype(np.complex128)
        return np.stack([wide.real, wide.imag], axis=-1)
    return held.astype(np.float64)


@dataclass(frozen=True)
class Runner:
    """Runner of functions on one set of arrays.

    Attributes:
        arrays: The arrays of the call.
        names: Their names.
        trained: Positions of the arrays that get gradients; empty for none.
        scale: Factor on the loss, divided out of the gradients again.
    """

    arrays: Sequence[Any]
    names: Sequence[str]
    trained: Sequence[int] = ()
    scale: float = 1.0

    def run(
        self,
        function: Flat,
        arrays: Sequence[Any] | None = None,
        *,
        jitted: bool,
        derived_jitted: bool = True,
    ) -> Run:
        """Call ``function`` and return its results, with gradients if requested.

        Args:
            function: Function of the arrays.
            arrays: The arrays in other dtypes; None to use those of the call.
            jitted: Whether it is compiled as a whole.
            derived_jitted: Whether its derivative is; op by op takes much longer.
        """
        given = self.arrays if arrays is None else arrays
        order: list[str] = []

        def named(*held: Any) -> dict[str, Any]:
            found = named_arrays(function(*held))
            order[:] = found
            return found

        made = (jax.jit(named) if jitted else named)(*given)
        found = {name: made[name] for name in order}  # jit sorts them
        dtypes = {name: dtype_name(x) for name, x in found.items()}
        kinds = {name: is_inexact(dtype) for name, dtype in dtypes.items()}
        return Run(
            outputs={name: to_array(x) for name, x in found.items() if kinds[name]},
            dtypes=dtypes,
            others={name: _plain(x) for name, x in found.items() if not kinds[name]},
            gradients=self._gradients(named, given, jitted=derived_jitted),
        )

    def _gradients(
        self, named: Flat, given: Sequence[Any], *, jitted: bool
    ) -> dict[str, Array]:
        """Return the gradients of :func:`_loss` by the names of the arrays."""
        if not self.trained:
            return {}

        def loss(*held: Any) -> Any:
            return _loss(named(*held)) * self.scale

        derive = jax.grad(loss, argnums=tuple(self.trained))
        found = (jax.jit(derive) if jitted else derive)(*map(jnp.asarray, given))
        return {
            self.names[position]: to_array(gradient) / self.scale
            for position, gradient in zip(self.trained, found, strict=True)
        }


def _plain(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _loss(found: dict[str, Any]) -> Any:
    """Return the mean square distance of the float outputs to fixed random targets."""
    total: Any = jnp.zeros((), jnp.float32)
    for number, value in enumerate(found.values()):
        if is_float(dtype_name(value)) and value.size:
            wide = jnp.promote_types(value.dtype, jnp.float32)
            target = np.random.default_rng(number).standard_normal(value.shape)
            distance = value.astype(wide) - jnp.asarray(target, wide)
            total = total + jnp.mean(distance * distance)
    return total
