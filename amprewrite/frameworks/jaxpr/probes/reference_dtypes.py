"""Run a program in other dtypes than traced: the reference of ``verify``.

The function is traced as it is, and every value of a float dtype is replaced as the
program runs. Calling it on wider arguments would not suffice: values pinned by
``astype``, and closed-over ones, would stay narrow.
"""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from amprewrite.dtypes import is_float
from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, jnp, lax
from amprewrite.frameworks.jaxpr.interpret.control_flow import HANDLERS
from amprewrite.frameworks.jaxpr.interpret.interpreter import Env, Writer, number
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.ops import dtype_name
from amprewrite.frameworks.jaxpr.program.program import (
    Number,
    Program,
    RegionBoundary,
    Step,
)

Dtypes = Mapping[str, str]
"""Replacements of float dtypes, by name."""

REFUSALS = (NotImplementedError, RuntimeError, TypeError, ValueError)
"""Errors that JAX raises if an op has no kernel for a dtype."""

REDUCES = ("reduce", "reduce_window", "reduce_precision")
"""Fences that run in any dtype."""

DRAWS = ("bitcast_convert_type", "random_gamma")
"""Primitives with bits or random numbers that depend on the dtype."""


@dataclass
class Wide:
    """A program that runs in other dtypes.

    Attributes:
        program: The program, as traced.
        dtypes: Replacements of its dtypes.
        traced_x64: Whether 64-bit types were enabled during the trace.
        kept: Steps that ran in the dtypes they were traced in, with their primitives.
        exact: The values that make exact arguments: none has to be told apart here.
    """

    exact: ClassVar[frozenset[str]] = frozenset()

    program: Program
    dtypes: Dtypes
    traced_x64: bool = field(default_factory=lambda: jax.config.jax_enable_x64)
    kept: dict[str, str] = field(default_factory=dict[str, str])

    def inputs(self, arrays: Iterable[Any]) -> list[Any]:
        """Return the arrays of a call in the dtypes in which the program reads them."""
        writer = Widener(self)
        return list(map(writer.enter, self.program.inputs, arrays))

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs on arrays from :meth:`inputs`."""
        return Widener(self).program(inputs)

    def other(self, dtype: str) -> str:
        """Return the replacement of ``dtype``."""
        return self.dtypes.get(dtype, dtype)

    def converted(
        self,
        fun: Callable[..., Any],
        operands: Sequence[Any],
        tangents: Iterable[int] = (),  # noqa: ARG002  # they are values like others
        exact: Iterable[int] = (),  # noqa: ARG002  # every value has one dtype
    ) -> list[Any]:
        """Return the outputs of ``fun`` on arrays, in the replaced dtypes.

        It is traced with the dtypes that it was written for.
        """
        back = {wide: dtype for dtype, wide in reversed(list(self.dtypes.items()))}
        types: list[Any] = []
        for x in operands:
            name = dtype_name(x)
            chosen = jnp.dtype(back[name]) if name in back else x.dtype
            types.append(jax.ShapeDtypeStruct(x.shape, chosen))
        with jax.enable_x64(self.traced_x64):
            closed = jax.make_jaxpr(fun)(*types)
        inner = replace(self, program=inline(closed))
        return inner.run(operands)


class Widener(Writer):
    """Interpreter that binds every equation as traced, with replaced dtypes."""

    def __init__(self, wide: Wide) -> None:  # no plan: there is nothing to decide
        self.wide: Wide = wide
        self.context: Any = wide
        self.handlers = HANDLERS
        self.casts = {}

    def enter(self, name: str, value: Any) -> Any:
        """Return an array from outside in the dtype that the program reads.

        It is first rounded to the traced dtype, as JAX does in a call.
        """
        dtype = dtype_name(self.wide.program.avals[name])
        if isinstance(value, (np.ndarray, np.generic)):
            value = jnp.asarray(value, jnp.dtype(dtype))
        return _as(value, self.wide.other(dtype))

    def start(self, inputs: Iterable[Any]) -> Env:
        """Return the values that exist before the first step."""
        program = self.wide.program
        env = {name: self.enter(name, x) for name, x in program.constants.items()}
        env.update(zip(program.inputs, inputs, strict=True))
        return env

    def program(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the outputs of the program on ``inputs``."""
        program = self.wide.program
        env = self.start(inputs)
        self.run(program.steps, env)
        return [self.get(atom, env) for atom in program.outputs]

    def rule_dtype(self, aval: Any) -> str:
        """Return the dtype in which a user's rule receives a value of type ``aval``."""
        return self.wide.other(dtype_name(aval))

    def stored(self, name: str) -> str:
        """Return the dtype in which a value is stored."""
        return self.rule_dtype(self.wide.program.avals[name])

    def get(self, atom: Any, env: Env) -> Any:
        """Return the value of ``atom``."""
        if not isinstance(atom, Number):
            return env[atom]
        dtype = self.wide.other(atom.dtype)
        if is_float(dtype):
            traced = np.asarray(atom.value, jnp.dtype(atom.dtype))  # rounded as there
            return number(traced, dtype)
        return atom.value if dtype == atom.dtype else np.asarray(atom.value, dtype)

    def pass_boundary(self, boundary: RegionBoundary, env: Env, which: int = 0) -> Any:
        """Return the value that passes by ``boundary``."""
        return _as(self.get(boundary.reads[which], env), self.stored(boundary.makes))

    def _plain(self, step: Step, env: Env) -> list[Any]:
        operands = [self.get(atom, env) for atom in step.operands]
        if step.chosen:  # a cast of full to full
            return operands
        made = None
        if not _is_pinned(step):
            try:
                made = self._bound(step, operands, self.wide.dtypes)
            except REFUSALS:
                made = None
        if made is None:
            traced = [dtype_name(var.aval) for var in step.eqn.invars]
            made = self._bound(step, list(map(_as, operands, traced)), {})
            if any(dtype in self.wide.dtypes for dtype in traced):
                self.wide.kept[step.name] = step.primitive
        return [_as(x, self.stored(n)) for x, n in zip(made, step.results, strict=True)]

    def _bound(self, step: Step, operands: list[Any], dtypes: Dtypes) -> list[Any]:
        primitive = step.eqn.primitive
        params = {
            key: _replaced(value, dtypes)
            for key, value in equations.bind_params(step.eqn).items()
        }
        if dtypes and isinstance(params.get("precision"), lax.DotAlgorithmPreset):
            params["precision"] = None  # a preset names dtypes
        made = primitive.bind(*operands, **params)
        return list(made) if primitive.multiple_results else [made]


def _is_pinned(step: Step) -> bool:
    """Return whether a step must run in its traced dtypes."""
    fenced = bool(step.fence) and step.primitive not in REDUCES
    bodied = step.primitive.startswith("scatter")  # its body is replaced
    return step.primitive in DRAWS or (fenced and not bodied)


def _as(value: Any, dtype: str) -> Any:
    """Return a float or complex ``value`` in ``dtype``; others as they are."""
    name = dtype_name(value)
    if name == dtype or not is_inexact(name):
        return value
    return lax.convert_element_type(value, jnp.dtype(dtype))


def is_inexact(dtype: str) -> bool:
    """Return whether a dtype is inexact: float or complex."""
    return is_float(dtype) or dtype in ("complex64", "complex128")


def _replaced(parameter: Any, dtypes: Dtypes) -> Any:
    """Return a parameter of an equation with the dtypes in it replaced."""
    if isinstance(parameter, np.dtype) and parameter.name in dtypes:
        return jnp.dtype(dtypes[parameter.name])
    if isinstance(parameter, jex.ClosedJaxpr):
        return _jaxpr_in(parameter, dtypes)
    if isinstance(parameter, jex.Jaxpr):
        return _jaxpr_in(jex.ClosedJaxpr(parameter, ()), dtypes).jaxpr
    return parameter


def _jaxpr_in(closed: Any, dtypes: Dtypes) -> Any:
    """Return a small body, such as the sum of a scatter, in other dtypes."""
    wide = Wide(inline(closed), dtypes)
    types = [
        jax.ShapeDtypeStruct(a.shape, jnp.dtype(wide.other(dtype_name(a))))
        for a in closed.in_avals
    ]
    return jax.make_jaxpr(lambda *args: wide.run(args))(*types)
