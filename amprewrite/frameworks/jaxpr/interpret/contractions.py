"""Contractions of low operands that accumulate in full precision.

JAX differentiates a contraction of low operands into contractions that hand back the
dtype of their operands; where devices share the batch, a compiler that partitions them
adds up their parts in that dtype. Contractions are therefore bound by two primitives
of our own. :data:`contraction_p` is one of a program: its parameter ``jaxpr`` has the
plain contraction and the rounding of its accumulator, and its derivative is a
contraction of low operands too. :data:`tangent_p` is that derivative, linear in one
operand: it is transposed into contractions that hand back accumulators, which are
rounded afterwards, if at all. It is only in the linear programs that JAX transposes.
``jax.checkpoint`` saves the result of either kind where it saves that of the plain
contraction; see :mod:`saving`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from amprewrite.frameworks.jaxpr.compat.untyped import (
    ad,
    batching,
    jax,
    jex,
    jnp,
    lax,
    mlir,
)
from amprewrite.frameworks.jaxpr.interpret.binders import Dot, Other, binder
from amprewrite.frameworks.jaxpr.interpret.checkpoint_saving import Plain, show_policies
from amprewrite.plan.hardware.kernels import OPERAND


@dataclass(frozen=True, slots=True, repr=False)
class Contraction:
    """One contraction; hashable, as custom rules want their static arguments.

    Attributes:
        bind: Binds the primitive.
        low: Name of the low dtype, in which derivatives are contracted.
        full: Name of the full dtype, that of the accumulator.
        made: Which of them the kernel hands back.
        reads: Which of them the kernel reads.
        sums: Which of them the kernels of derivatives hand back; ``operand`` for that
            of the operand whose cotangent it is.
    """

    bind: Dot | Other
    low: str
    full: str
    made: str
    reads: str
    sums: str

    def __repr__(self) -> str:
        """Return the dtypes in short, for programs that are printed."""
        return f"{self.reads} into {self.made}, derivatives of {self.low} {self.sums}"

    def value(self, lhs: Any, rhs: Any) -> Any:
        """Return the contraction of two operands of either dtype."""
        reads = self.reads
        return self.bind(_cast(lhs, reads), _cast(rhs, reads), self.made)


def contract(of: Contraction, operands: tuple[Any, Any], wanted: str) -> Any:
    """Contract ``operands`` into a result of dtype ``wanted``.

    Args:
        of: How; where its kernel hands over another dtype than ``wanted``, what it
            hands over is rounded afterwards.
        operands: Both operands. A full one is cast by a low contraction, and gets an
            unrounded cotangent.
        wanted: Name of the low or the full dtype.
    """
    jaxpr = rounded(of, wanted).trace(*operands).jaxpr  # JAX keeps it
    return contraction_p.bind(*operands, of=of, wanted=wanted, jaxpr=jaxpr)


def contract_tangents(of: Contraction, operands: tuple[Any, Any], wanted: str) -> Any:
    """Contract low ``operands``, one of them a tangent; JAX may transpose it.

    The kernel hands over the dtype ``wanted``.
    """
    return tangent_p.bind(*operands, of=replace(of, made=wanted))


@lru_cache(maxsize=4096)
def rounded(of: Contraction, wanted: str) -> Any:
    """Return the function of two operands that gives the sums in dtype ``wanted``.

    Layers of a model have equal contractions: JAX traces and lowers each kind once. A
    transformer with 73 was emitted in three quarters of the time then.
    """

    def contracted(lhs: Any, rhs: Any) -> Any:
        return _cast(of.value(lhs, rhs), wanted)

    return jax.jit(contracted)


def _cast(value: Any, dtype: str) -> Any:
    return lax.convert_element_type(value, jnp.dtype(dtype))


contraction_p = jex.Primitive("low_contraction")
"""Contracts two operands as ``of`` says, into the dtype ``wanted``, as ``jaxpr`` does.
"""

tangent_p = jex.Primitive("low_tangent")
"""Contracts two operands, low or full, as its parameter ``of`` says; bilinear."""


def _rounded(lhs: Any, rhs: Any, *, of: Contraction, wanted: str, jaxpr: Any) -> Any:
    del jaxpr
    return rounded(of, wanted)(lhs, rhs)


def _type(*operands: Any, of: Contraction, wanted: str, jaxpr: Any) -> Any:
    """Return the type of the result; its shardings are in the jaxpr."""
    del operands, of, wanted
    return jaxpr.out_avals[0]


def _differentiated(
    primals: Any, tangents: Any, *, of: Contraction, wanted: str, jaxpr: Any
) -> tuple[Any, Any]:
    """Return the result and its tangent, a contraction of low operands.

    Operands are kept low for the backward pass. The tangent of an operand that was full
    stays full, for its cotangent is the one that is not rounded.
    """
    del jaxpr
    lhs, rhs = (_cast(x, of.low) for x in primals)
    low = of.reads == of.low
    out = contract(of, (lhs, rhs) if low else tuple(primals), wanted)
    linear = replace(of, reads=of.low)
    parts = [
        tangent_p.bind(*pair, of=linear)
        for tangent, pair in zip(
            tangents, ((tangents[0], rhs), (lhs, tangents[1])), strict=True
        )
        if not isinstance(tangent, ad.Zero)
    ]
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return out, _cast(total, wanted)


def _batched_contraction(
    axis: Any, operands: Any, dims: Any, *, of: Contraction, wanted: str, jaxpr: Any
) -> Any:
    del jaxpr

    def bind(of: Contraction, pair: Any) -> Any:
        return contract(of, pair, wanted)

    return _batched_as(bind, axis, operands, dims, of)


def _plainly(lhs: Any, rhs: Any, *, of: Contraction, **_: Any) -> Plain:
    """Return the plain contraction, as policies of ``jax.checkpoint`` know it."""
    lows = tuple(x.update(dtype=jnp.dtype(of.low), weak_type=False) for x in (lhs, rhs))
    return of.bind.primitive, lows, dict(of.bind.params)


def _value(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    return of.value(lhs, rhs)


def _abstract(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    """Shape, sharding and manual axes are those that JAX finds for the primitive."""
    lows = [x.update(dtype=jnp.dtype(of.low), weak_type=False) for x in (lhs, rhs)]
    params = {**dict(of.bind.params), "preferred_element_type": jnp.dtype(of.made)}
    aval, _ = of.bind.primitive.abstract_eval(*lows, **params)
    return aval


def _batched(axis: Any, operands: Any, dims: Any, *, of: Contraction) -> Any:
    def bind(of: Contraction, pair: Any) -> Any:
        return tangent_p.bind(*pair, of=of)

    return _batched_as(bind, axis, operands, dims, of)


def _batched_as(
    bind: Any, axis: Any, operands: Any, dims: Any, of: Contraction
) -> tuple[Any, Any]:
    """Batch as JAX does, and let ``bind`` bind the contractions that come out."""
    rule = batching.fancy_primitive_batchers[of.bind.primitive]
    made: list[Any] = []

    def run(*lows: Any) -> Any:
        out, dim = rule(axis, lows, dims, **dict(of.bind.params))
        made.append(dim)
        return out

    lows = [_cast(x, of.low) for x in operands]
    return _again(run, lows, operands, of, bind), made[0]


def _transposed(side: int, ct: Any, lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    """Return the cotangent of one operand, in the dtype of that operand.

    The plan says in which dtype the sum over what was contracted is handed back.
    """
    operand, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    aval = operand.aval.update(dtype=jnp.dtype(of.full), weak_type=False)
    wanted = str(operand.aval.dtype)
    made = wanted if of.sums == OPERAND else of.sums
    sums = replace(of, made=made, reads=of.low)
    return _cast(cotangent(sums, side, aval)(ct, other), wanted)


@lru_cache(maxsize=4096)
def cotangent(of: Contraction, side: int, aval: Any) -> Any:
    """Return the function that gives the cotangent of an operand, in ``of.made``.

    It takes the cotangent of the result and the other operand. The primitive is
    transposed by JAX's own rule.

    Args:
        of: What is transposed, and how the sum is handed back.
        side: Which operand it is.
        aval: The operand, in the full dtype, so that the rule casts nothing.
    """
    rule = ad.get_primitive_transpose(of.bind.primitive)
    params = {**dict(of.bind.params), "preferred_element_type": jnp.dtype(of.full)}

    def run(ct: Any, other: Any) -> Any:
        unknown = ad.UndefinedPrimal(aval)
        pair = (unknown, other) if side == 0 else (other, unknown)
        return ad.instantiate_zeros(rule(ct, *pair, **params)[side])

    def bind(of: Contraction, pair: Any) -> Any:
        return contract(of, pair, of.made)

    def transposed(ct: Any, other: Any) -> Any:
        lows = _cast(ct, of.low), _cast(other, of.low)
        return _again(run, lows, lows, of, bind)

    return jax.jit(transposed)


def _again(run: Any, traced: Any, given: Any, of: Contraction, bind: Any) -> Any:
    """Run what JAX makes of a contraction, with another way to bind contractions.

    Args:
        run: Gives one result.
        traced: Operands that it can be traced with.
        given: Operands that it is run with; their dtypes may be others.
        of: The contraction that was there before.
        bind: Binds a contraction.
    """
    jaxpr = jax.make_jaxpr(run)(*traced).jaxpr
    env = dict(zip(jaxpr.invars, given, strict=True))
    for eqn in jaxpr.eqns:
        read = [x.val if isinstance(x, jex.Literal) else env[x] for x in eqn.invars]
        if eqn.primitive is of.bind.primitive:
            found = bind(replace(of, bind=binder(eqn.primitive, eqn.params)), read)
        else:
            found = eqn.primitive.bind(*read, **eqn.params)
        (env[eqn.outvars[0]],) = [found]
    return env[jaxpr.outvars[0]]


contraction_p.def_impl(_rounded)
contraction_p.def_abstract_eval(_type)
mlir.register_lowering(contraction_p, mlir.lower_fun(_rounded, multiple_results=False))
batching.fancy_primitive_batchers[contraction_p] = _batched_contraction
ad.primitive_jvps[contraction_p] = _differentiated
show_policies(contraction_p, _plainly)

tangent_p.def_impl(_value)
tangent_p.def_abstract_eval(_abstract)
mlir.register_lowering(tangent_p, mlir.lower_fun(_value, multiple_results=False))
batching.fancy_primitive_batchers[tangent_p] = _batched
ad.defbilinear(tangent_p, partial(_transposed, 0), partial(_transposed, 1))
