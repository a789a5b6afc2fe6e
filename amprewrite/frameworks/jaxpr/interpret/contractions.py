"""Contractions of low-precision operands with full-precision accumulation.

JAX differentiates a contraction of low operands into contractions with results in the
dtype of their operands; where devices share the batch, a partitioning compiler adds up
their parts in that dtype. Contractions are therefore bound by two primitives of our
own. :data:`contraction_p` is one of a program: its parameter ``jaxpr`` has the plain
contraction and the rounding of its accumulator, and its derivative is a contraction of
low operands too. :data:`tangent_p` is that derivative, linear in one operand. Either is
transposed into contractions that return accumulators, which are rounded afterwards, if
at all; that of a program only where the program itself is linear, by
``jax.linear_transpose`` and by linear solvers. ``jax.checkpoint`` saves the result of
either primitive where it saves that of the plain contraction.

:class:`Binder` binds the plain contraction, in layouts that every backend can run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from amprewrite.frameworks.jaxpr.compat import primitives, tracers
from amprewrite.frameworks.jaxpr.compat.primitives import bind, convert
from amprewrite.frameworks.jaxpr.compat.untyped import (
    ad,
    batching,
    jax,
    jex,
    jnp,
    lax,
    mlir,
    partial_eval,
)
from amprewrite.frameworks.jaxpr.executor import ProgramExecutor
from amprewrite.frameworks.jaxpr.program.inline import inline
from amprewrite.frameworks.jaxpr.program.program import Program, Step
from amprewrite.plan.hardware import OPERAND

# --- the plain contraction ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Binder:
    """Binds a contraction with given parameters, avoiding failing layouts on CPUs.

    For CPUs the XLA of jaxlib 0.10.2 and 0.11.2 compiles some layouts of bfloat16
    operands with a float32 result into code that fails at run time ("Unsupported
    element type for DotThunk::Execute"): some with two batch dimensions, some with two
    contracted ones, some with a contracted dimension of the left operand that is not
    its last, also where XLA derived that from an earlier transposition, and ``(x @
    w).T``, where XLA swaps the operands. There, the batch dimensions are merged into
    one and the contracted ones into one, the left operand is copied to a new layout,
    and barriers stop XLA from moving transpositions into or through the contraction.
    ``vmap`` may add a batch dimension later and keeps this.

    Attributes:
        primitive: The bound primitive.
        params: Its parameters.
    """

    primitive: Any
    params: tuple[tuple[str, Any], ...]

    def __call__(self, lhs: Any, rhs: Any, result: str) -> Any:
        """Return the contraction of two operands in the dtype called ``result``."""
        dtype: Any = np.dtype(jax.numpy.dtype(result))
        params = {**dict(self.params), "preferred_element_type": dtype}
        if self.primitive is not lax.dot_general_p:
            return bind(self.primitive, (lhs, rhs), params)[0]
        dims = params.pop("dimension_numbers")
        if str(lhs.dtype) != result and jax.default_backend() == "cpu":
            several = any(len(part) > 1 for part in (dims[0][0], dims[1][0]))
            if several and params.get("out_sharding") is None and _unsharded(lhs, rhs):
                return _merged(lhs, rhs, dims, params)
            lhs, dims = _contracted_last(lhs, dims)
            return lax.optimization_barrier(_dot(lhs, rhs, dims, params))
        return _dot(lhs, rhs, dims, params)


def _dot(lhs: Any, rhs: Any, dims: Any, params: dict[str, Any]) -> Any:
    params = {"dimension_numbers": dims, **params}
    return bind(lax.dot_general_p, (lhs, rhs), params)[0]


def _unsharded(*operands: Any) -> bool:
    """Return whether no mesh has explicit axes, which merged dimensions need."""
    meshes = (jax.typeof(x).sharding.mesh for x in operands)
    return all(mesh.empty or mesh.are_all_axes_auto for mesh in meshes)


def _contracted_last(lhs: Any, dims: Any) -> tuple[Any, Any]:
    """Return the left operand with its contracted dimensions as the last."""
    (left, right), (left_batch, right_batch) = dims
    order = [*(i for i in range(lhs.ndim) if i not in left), *left]
    batch = tuple(order.index(i) for i in left_batch)
    last = tuple(range(lhs.ndim - len(left), lhs.ndim))
    return _laid_out(lhs, order), ((last, right), (batch, right_batch))


def _laid_out(x: Any, order: Sequence[int]) -> Any:
    """Transpose in memory: XLA folds a plain transposition into the contraction."""
    return lax.optimization_barrier(lax.transpose(x, order))


def _merged(lhs: Any, rhs: Any, dims: Any, params: dict[str, Any]) -> Any:
    """Contract with all batch dimensions in one, and all contracted ones in one."""
    (left, right), (left_batch, right_batch) = dims
    left_free = [i for i in range(lhs.ndim) if i not in (*left, *left_batch)]
    right_free = [i for i in range(rhs.ndim) if i not in (*right, *right_batch)]
    lhs = lax.transpose(lhs, (*left_batch, *left_free, *left))
    rhs = lax.transpose(rhs, (*right_batch, *right, *right_free))
    count, terms = len(left_batch), len(left)
    batch, sums = lhs.shape[:count], lhs.shape[lhs.ndim - terms :]
    rows = lhs.shape[count : lhs.ndim - terms]
    columns = rhs.shape[count + terms :]
    joint = (prod(batch),) if batch else ()
    lhs = lax.reshape(lhs, (*joint, *rows, prod(sums)))
    rhs = lax.reshape(rhs, (*joint, prod(sums), *columns))
    first = tuple(range(len(joint)))
    contracting = ((lhs.ndim - 1,), (len(joint),))
    dims = contracting, (first, first)
    out = _dot(lax.optimization_barrier(lhs), rhs, dims, params)
    return lax.reshape(lax.optimization_barrier(out), (*batch, *rows, *columns))


def binder(primitive: Any, params: Mapping[str, Any]) -> Binder:
    """Return a function that binds the contraction ``primitive`` with parameters."""
    return Binder(primitive, tuple(params.items()))


# --- policies of jax.checkpoint -------------------------------------------------------
#
# A policy is asked about each primitive of a checkpointed body that is differentiated,
# and matches the ones that it knows, such as ``dot_general``. Asked about the replaced
# primitive, it saves the same results as in a program that was not rewritten.

Plain = tuple[Any, Sequence[Any], Mapping[str, Any]]
"""Primitive, types of its operands, and its parameters."""

Rule = tuple[Any, Any, list[bool], list[bool], list[Any]]
"""Result of a partial evaluation rule of JAX.

The equations of the forward and of the backward pass; flags of results that are unknown
in the forward pass, and of those that exist in the backward pass; and the saved values.
"""


def show_policies(primitive: Any, plainly: Callable[..., Plain]) -> None:
    """Make policies see another primitive in place of one with a single result.

    Args:
        primitive: The primitive in the program.
        plainly: Returns the primitive that policies see, from the types of the operands
            and the parameters.
    """

    def rule(saveable: Any, unknown: list[bool], there: list[bool], eqn: Any) -> Rule:
        missing = [
            x
            for x, is_there in zip(eqn.invars, there, strict=True)
            if not is_there and not isinstance(x, jex.Literal)
        ]
        if any(unknown):
            return None, eqn, [True], [True], missing
        other, avals, params = plainly(*(x.aval for x in eqn.invars), **eqn.params)
        found = saveable(other, *avals, **params)
        if primitives.is_saved(found):
            return eqn, None, [False], [False], []
        places = primitives.offloaded(found)
        if places is not None:
            return _offloaded(eqn, *places)
        return eqn, eqn, [False], [True], missing

    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def _offloaded(eqn: Any, home: Any, away: Any) -> Rule:
    """Return the rule of an equation with its result offloaded to another memory."""

    def forward(*operands: Any) -> tuple[Any, Any]:
        (made,) = bind(eqn.primitive, operands, eqn.params)
        return made, jax.device_put(made, away)

    known = _one_equation(jax.jit(forward), [x.aval for x in eqn.invars])
    (saved,) = known.outvars[1:]
    back = _one_equation(partial(jax.device_put, device=home), [saved.aval])
    return (
        known.replace(invars=eqn.invars, outvars=[*eqn.outvars, saved]),
        back.replace(invars=[saved], outvars=eqn.outvars),
        [False],
        [True],
        [saved],
    )


def _one_equation(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """Return the equation traced from a function on arrays of given types."""
    (eqn,) = jax.make_jaxpr(function)(*avals).jaxpr.eqns
    return eqn


# --- a contraction of a program -------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Contraction:
    """The dtypes and the binder of one contraction; hashable, as a static argument.

    Attributes:
        bind: Binds the primitive.
        low: Name of the low dtype, that of the operands of derivatives.
        full: Name of the full dtype, that of the accumulator.
        made: Dtype of the kernel's result, low or full.
        reads: Dtype of the kernel's operands, low or full.
        sums: Dtype of the results of derivatives; ``operand`` for the dtype of the
            operand that the cotangent is for.
    """

    bind: Binder
    low: str
    full: str
    made: str
    reads: str
    sums: str

    def __repr__(self) -> str:
        """Return the dtypes in short, for printed programs."""
        return f"{self.reads} into {self.made}, derivatives of {self.low} {self.sums}"

    def value(self, lhs: Any, rhs: Any) -> Any:
        """Return the contraction of two operands, cast to its operand dtype."""
        reads = self.reads
        return self.bind(convert(lhs, reads), convert(rhs, reads), self.made)


def contract(of: Contraction, operands: tuple[Any, Any], wanted: str) -> Any:
    """Contract ``operands`` into a result of dtype ``wanted``.

    Args:
        of: The contraction; a kernel result of another dtype than ``wanted`` is rounded
            afterwards.
        operands: Both operands. A full one is cast by a low contraction, and gets an
            unrounded cotangent.
        wanted: Name of the low or the full dtype.
    """
    jaxpr = tracers.jaxpr_of(_traceable(of, wanted), operands)
    params = {"of": of, "wanted": wanted, "jaxpr": jaxpr}
    return bind(contraction_p, operands, params)[0]


def contract_tangents(of: Contraction, operands: tuple[Any, Any], wanted: str) -> Any:
    """Contract low ``operands``, one of them a tangent; JAX may transpose it.

    The kernel returns the dtype ``wanted``.
    """
    return _contract_linear(replace(of, made=wanted), operands)


def _contract_linear(of: Contraction, operands: tuple[Any, Any]) -> Any:
    return bind(tangent_p, operands, {"of": of})[0]


@lru_cache(maxsize=4096)
def _traceable(of: Contraction, wanted: str) -> Any:
    """Return the function that contracts two operands into dtype ``wanted``.

    It is the same for equal contractions, as in the layers of a model, so that they are
    traced and lowered once. That cut the time to emit a transformer with 73 of them by
    a quarter.
    """
    return tracers.traceable(_contracting(of, wanted), 2)


@lru_cache(maxsize=4096)
def _jitted(of: Contraction, wanted: str) -> Any:
    """Return the same function, to be run."""
    return jax.jit(_contracting(of, wanted))


def _contracting(of: Contraction, wanted: str) -> Any:
    def contracted(lhs: Any, rhs: Any) -> list[Any]:
        return [convert(of.value(lhs, rhs), wanted)]

    return contracted


contraction_p = jex.Primitive("low_contraction")
"""Primitive that contracts two operands into dtype ``wanted``, as its ``jaxpr``.
"""

tangent_p = jex.Primitive("low_tangent")
"""Primitive that contracts two operands, low or full; bilinear, so transposable."""


def _rounded(lhs: Any, rhs: Any, *, of: Contraction, wanted: str, jaxpr: Any) -> Any:
    del jaxpr
    return _jitted(of, wanted)(lhs, rhs)[0]


def _as_traced(lhs: Any, rhs: Any, *, jaxpr: Any, **_: Any) -> Any:
    """Return the result by the jaxpr; JAX lowers equal ones once."""
    return jex.jaxpr_as_fun(jaxpr)(lhs, rhs)[0]


def _type(*operands: Any, of: Contraction, wanted: str, jaxpr: Any) -> Any:
    """Return the type of the result, with its shardings, from the jaxpr."""
    del operands, of, wanted
    return jaxpr.out_avals[0]


def _differentiated(
    primals: Any, tangents: Any, *, of: Contraction, wanted: str, jaxpr: Any
) -> tuple[Any, Any]:
    """Return the result and its tangent, a contraction of low operands.

    Operands are saved low for the backward pass. The tangent of a full operand stays
    full, so that its cotangent is not rounded.
    """
    del jaxpr
    lhs, rhs = (convert(x, of.low) for x in primals)
    low = of.reads == of.low
    out = contract(of, (lhs, rhs) if low else tuple(primals), wanted)
    linear = replace(of, reads=of.low)
    pairs = zip(tangents, ((tangents[0], rhs), (lhs, tangents[1])), strict=True)
    parts = [
        _contract_linear(linear, pair)
        for tangent, pair in pairs
        if not isinstance(tangent, ad.Zero)
    ]
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return out, convert(total, wanted)


def _batched_contraction(
    axis: Any, operands: Any, dims: Any, *, of: Contraction, wanted: str, jaxpr: Any
) -> Any:
    del jaxpr
    return _batched_as(partial(contract, wanted=wanted), axis, operands, dims, of)


def _plainly(lhs: Any, rhs: Any, *, of: Contraction, **_: Any) -> Plain:
    """Return the plain contraction, as policies of ``jax.checkpoint`` know it."""
    lows = tuple(x.update(dtype=jnp.dtype(of.low), weak_type=False) for x in (lhs, rhs))
    return of.bind.primitive, lows, dict(of.bind.params)


def _value(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    return of.value(lhs, rhs)


def _abstract(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    """Return the type of the result, inferred by JAX's rule for the primitive."""
    primitive, lows, params = _plainly(lhs, rhs, of=of)
    made = {"preferred_element_type": jnp.dtype(of.made)}
    aval, _ = primitive.abstract_eval(*lows, **{**params, **made})
    return aval


def _batched(axis: Any, operands: Any, dims: Any, *, of: Contraction) -> Any:
    return _batched_as(_contract_linear, axis, operands, dims, of)


def _batched_as(
    bound: Any, axis: Any, operands: Any, dims: Any, of: Contraction
) -> tuple[Any, Any]:
    """Batch as JAX does, binding the resulting contractions by ``bound``."""
    rule = batching.fancy_primitive_batchers[of.bind.primitive]
    made: list[Any] = []

    def run(*lows: Any) -> Any:
        out, dim = rule(axis, lows, dims, **dict(of.bind.params))
        made.append(dim)
        return out

    lows = [convert(x, of.low) for x in operands]
    return _again(run, lows, operands, of, bound), made[0]


def _transposed(
    side: int, ct: Any, lhs: Any, rhs: Any, *, of: Contraction, **_: Any
) -> Any:
    """Return the cotangent of one operand, in the dtype of that operand.

    The plan sets the dtype of the sum over the contracted dimensions.
    """
    operand, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    aval = operand.aval.update(dtype=jnp.dtype(of.full), weak_type=False)
    wanted = str(operand.aval.dtype)
    made = wanted if of.sums == OPERAND else of.sums
    sums = replace(of, made=made, reads=of.low)
    return convert(cotangent(sums, side, aval)(ct, other), wanted)


@lru_cache(maxsize=4096)
def cotangent(of: Contraction, side: int, aval: Any) -> Any:
    """Return the function that computes an operand's cotangent in ``of.made``.

    Its arguments are the cotangent of the result and the other operand. JAX's own rule
    transposes the primitive.

    Args:
        of: The contraction to transpose, and the dtype of the sum.
        side: Index of the operand.
        aval: Type of the operand in the full dtype, so that the rule casts nothing.
    """
    rule = ad.get_primitive_transpose(of.bind.primitive)
    params = {**dict(of.bind.params), "preferred_element_type": jnp.dtype(of.full)}

    def run(ct: Any, other: Any) -> Any:
        unknown = ad.UndefinedPrimal(aval)
        pair = (unknown, other) if side == 0 else (other, unknown)
        return ad.instantiate_zeros(rule(ct, *pair, **params)[side])

    def transposed(ct: Any, other: Any) -> Any:
        lows = convert(ct, of.low), convert(other, of.low)
        return _again(run, lows, lows, of, partial(contract, wanted=of.made))

    return jax.jit(transposed)


class _Rebound(ProgramExecutor):
    """Executor that binds contractions in another way.

    Args:
        program: The program.
        of: The contraction before a transformation.
        bound: Binds a contraction.
    """

    def __init__(self, program: Program, of: Contraction, bound: Any) -> None:
        super().__init__(program)
        self.of, self.bound = of, bound

    def evaluate(self, step: Step, operands: list[Any]) -> Sequence[Any]:
        if step.eqn.primitive is not self.of.bind.primitive:
            return super().evaluate(step, operands)
        bind = binder(step.eqn.primitive, step.eqn.params)
        return [self.bound(replace(self.of, bind=bind), operands)]


def _again(run: Any, traced: Any, given: Any, of: Contraction, bound: Any) -> Any:
    """Run JAX's transformation of a contraction, with another binder of contractions.

    Args:
        run: Function with one result.
        traced: Operands to trace it with.
        given: Operands to run it with; their dtypes may differ.
        of: The contraction before the transformation.
        bound: Binds a contraction.
    """
    program = inline(jax.make_jaxpr(run)(*traced))
    return _Rebound(program, of, bound)(given)[0]


contraction_p.def_impl(_rounded)
contraction_p.def_abstract_eval(_type)
mlir.register_lowering(
    contraction_p, mlir.lower_fun(_as_traced, multiple_results=False)
)
batching.fancy_primitive_batchers[contraction_p] = _batched_contraction
ad.defbilinear(contraction_p, partial(_transposed, 0), partial(_transposed, 1))
ad.primitive_jvps[contraction_p] = _differentiated
show_policies(contraction_p, _plainly)

tangent_p.def_impl(_value)
tangent_p.def_abstract_eval(_abstract)
mlir.register_lowering(tangent_p, mlir.lower_fun(_value, multiple_results=False))
batching.fancy_primitive_batchers[tangent_p] = _batched
ad.defbilinear(tangent_p, partial(_transposed, 0), partial(_transposed, 1))
