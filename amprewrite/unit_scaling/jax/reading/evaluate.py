"""Run parts of a program on numbers of our choice, to see which function they are."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from amprewrite.frameworks.jaxpr.compat import equations, tracers
from amprewrite.frameworks.jaxpr.compat.primitives import bind
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor
from amprewrite.frameworks.jaxpr.program.program import Atom, Number, Step
from amprewrite.unit_scaling.jax.reading.program import CLOSED, Reading

# Primitives on NumPy arrays: nothing is compiled to see which function a part is.

sp: Any = special
_operator: Any = operator
Array = Any


def _select(which: Array, *cases: Array) -> Array:
    """Return the chosen case of each element; truth values choose the second."""
    return np.choose(np.asarray(which, np.int64), np.broadcast_arrays(*cases))


def _broadcast(x: Array, shape: Any, broadcast_dimensions: Any, **_: Any) -> Array:
    extents = [1] * len(shape)
    for size, axis in zip(np.shape(x), broadcast_dimensions, strict=True):
        extents[axis] = size
    return np.broadcast_to(np.reshape(x, extents), shape)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _divide(x: Array, y: Array) -> Array:
    return x / y if x.dtype.kind == "f" else x // y


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _squeeze(x: Array, dimensions: Any, **_: Any) -> Array:
    return np.squeeze(x, tuple(map(int, dimensions)))


def _transpose(x: Array, permutation: Any, **_: Any) -> Array:
    return np.transpose(x, permutation)


def _iota(dtype: Any, shape: Any, dimension: int, **_: Any) -> Array:
    extents = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    counted = np.arange(shape[dimension], dtype=dtype).reshape(extents)
    return np.broadcast_to(counted, shape)


def _reduce(function: Any) -> Callable[..., Array]:
    def reduce(x: Array, axes: Any, **_: Any) -> Array:
        return function(x, axis=tuple(map(int, axes)))

    return reduce


def _integer_pow(x: Array, y: int) -> Array:
    return np.power(x, y, dtype=x.dtype) if y >= 0 else 1 / np.power(x, -y)


def _reshape(x: Array, new_sizes: Any, dimensions: Any = None, **_: Any) -> Array:
    del dimensions
    return np.reshape(x, new_sizes)


def _plain(function: Any) -> Callable[..., Array]:
    return lambda *xs, **_: function(*xs)


NUMPY: Mapping[str, Callable[..., Array]] = {
    **{
        name: _plain(getattr(np, name))
        for name in (
            "abs", "cos", "exp", "exp2", "expm1", "floor", "log", "log1p", "sign",
            "sin", "sqrt", "square", "tan", "tanh",
        )
    },
    **{
        name: _plain(getattr(sp, name)) for name in ("erf", "erfc")
    },
    "add": _plain(_operator.add),
    "add_any": _plain(_operator.add),
    "and": _plain(np.bitwise_and),
    "broadcast_in_dim": _broadcast,
    "clamp": _plain(_clamp),
    "copy": _plain(np.copy),
    "div": _plain(_divide),
    "eq": _plain(_operator.eq),
    "ge": _plain(_operator.ge),
    "gt": _plain(_operator.gt),
    "integer_pow": _integer_pow,
    "iota": _iota,
    "is_finite": _plain(np.isfinite),
    "le": _plain(_operator.le),
    "logistic": _plain(sp.expit),
    "lt": _plain(_operator.lt),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "mul": _plain(_operator.mul),
    "ne": _plain(_operator.ne),
    "neg": _plain(_operator.neg),
    "not": _plain(np.bitwise_not),
    "or": _plain(np.bitwise_or),
    "pow": _plain(np.power),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_sum": _reduce(np.sum),
    "reshape": _reshape,
    "rsqrt": _plain(_rsqrt),
    "select_n": _plain(_select),
    "squeeze": _squeeze,
    "stop_gradient": _plain(np.asarray),
    "sub": _plain(_operator.sub),
    "transpose": _transpose,
}  # fmt: skip
"""By name of the primitive; parameters by keyword."""


def run(name: str, operands: list[Array], params: Mapping[str, Any]) -> Array | None:
    """Return the result of a primitive; None if it is not known here.

    Args:
        name: Name of the primitive.
        operands: NumPy arrays.
        params: Parameters of the equation.
    """
    function = NUMPY.get(name)
    if function is None or not all(isinstance(x, np.ndarray) for x in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*operands, **params))


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
        made = run(name, operands, params)
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
