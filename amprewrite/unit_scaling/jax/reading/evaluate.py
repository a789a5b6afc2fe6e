"""Run parts of a program on numbers of our choice, to see which function they are."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.primitives import bind
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor
from amprewrite.frameworks.jaxpr.program.program import Atom, Number, Step
from amprewrite.unit_scaling.jax.reading import numpy_ops
from amprewrite.unit_scaling.jax.reading.program import CLOSED, Reading

Array = Any
Small = Callable[[int], int]
"""Returns the extent to run with for a traced one."""

SIZED = frozenset({"limit_indices", "new_sizes", "shape", "sizes", "slice_sizes"})
"""Parameters of primitives that are extents."""


class Evaluator(ProgramExecutor):
    """Executor of the steps that a value needs, from the values of some of them.

    Floats are all of one dtype, whatever was traced. Inputs that are not given are 0
    for integers, true for truth values, and 1 for floats.
    """

    def __init__(
        self,
        reading: Reading,
        given: Mapping[str, Array],
        dtype: Any,
        small: Small | None,
    ) -> None:
        """Take the values that are given.

        Args:
            reading: The program.
            given: Values by name.
            dtype: Dtype of floats.
            small: Changes extents; None where every value is a function of one number,
                and has the shape of what is given, or is a scalar.
        """
        super().__init__(reading.program)
        self.reading, self.dtype, self.small = reading, dtype, small
        self.values = dict(given)

    def value(self, atom: Atom) -> Array:
        """Return a value, computed from those that are given."""
        if isinstance(atom, str) and atom not in self.values:
            self._find(atom)
        return self.get(atom, self.values)

    def literal(self, atom: Number) -> Array:
        """Return the value of a number, a float in the dtype of this run."""
        is_floating = jnp.issubdtype(jnp.dtype(atom.dtype), jnp.floating)
        dtype = self.dtype if is_floating else atom.dtype
        return np.asarray(atom.value, jnp.dtype(dtype))

    def _find(self, name: str) -> None:
        """Compute one value; ancestors first, without recursion."""
        waiting = [name]
        while waiting:
            last = waiting[-1]
            if last in self.reading.same:
                before = [self.reading.same[last]]
            else:
                step = self.reading.made_by.get(last)
                before = list(step.operands) if step and _runs(step) else []
            missing = [a for a in before if isinstance(a, str) and a not in self.values]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if last not in self.values:
                self._make(last)

    def _make(self, name: str) -> None:
        if name in self.reading.same:
            self.values[name] = self.value(self.reading.same[name])
            return
        step = self.reading.made_by.get(name)
        if step is None or not _runs(step):
            self.values[name] = self._leaf(name)
            return
        self.run((step,), self.values)

    def _leaf(self, name: str) -> Array:
        """Return a stand-in for a value that is not computed here."""
        aval = self.reading.program.avals[name]
        shape = () if self.small is None else tuple(map(self.small, aval.shape))
        if jnp.issubdtype(aval.dtype, jnp.floating):
            return np.ones(shape, self.dtype)
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):  # a random key
            return jnp.zeros(shape, aval.dtype)
        if aval.dtype == np.bool_:
            return np.ones(shape, np.bool_)
        return np.zeros(shape, aval.dtype)

    def evaluate(self, step: Step, operands: list[Array]) -> list[Array]:
        """Return the results of a step, by NumPy where it can."""
        primitive, params = step.eqn.primitive, equations.bind_params(step.eqn)
        name = primitive.name
        if name == "convert_element_type":
            new = params["new_dtype"]
            floats = jnp.issubdtype(new, jnp.floating)
            wanted = self.dtype if floats else new
            of_numpy = isinstance(operands[0], np.ndarray)
            return [(np if of_numpy else jnp).asarray(operands[0], wanted)]
        if self.small is None:
            if name in ("broadcast_in_dim", "reshape", "squeeze", "expand_dims"):
                return [operands[0]]
            if not _are_numpy(operands):
                operands = list(jnp.broadcast_arrays(*operands))
        else:
            params = {
                key: self._extents(value) if key in SIZED else value
                for key, value in params.items()
            }
            if name == "iota" and jnp.issubdtype(params["dtype"], jnp.floating):
                params["dtype"] = self.dtype
        made = numpy_ops.run(name, operands, params)
        if made is not None:
            return [self._narrow(made)]
        results = bind(primitive, operands, params)
        return [y if _stays(y) else np.asarray(y) for y in results]

    def _narrow(self, x: Array) -> Array:
        """Return floats in the dtype of this run: NumPy may widen them."""
        return x.astype(self.dtype) if x.dtype.kind == "f" else x

    def _extents(self, extents: Any) -> Any:
        if self.small is None or extents is None:
            return extents
        return tuple(map(self.small, extents))


def _stays(x: Array) -> bool:
    """Return whether a value cannot be an array of NumPy."""
    return tracers.is_tracer(x) or jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _are_numpy(operands: list[Array]) -> bool:
    return all(isinstance(x, np.ndarray) for x in operands)


def _runs(step: Step) -> bool:
    """Return whether a step is run here; others are stand-ins."""
    return not step.bodies and step.primitive not in CLOSED and not step.fence
