"""Contractions of low operands that accumulate in full precision.

The derivatives are contractions of low operands, too. JAX transposes a contraction into
one that hands back the dtype of its operands; where devices share the batch, a compiler
that partitions it adds up their parts in that dtype. Tangents are therefore contracted
by a primitive of our own, :data:`tangent_p`, that has another transposition: it hands
back accumulators, which are rounded afterwards, if at all. Everything else of it is
what JAX does with the contraction. Programs and gradients do not contain it, only the
linear programs that JAX transposes.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from jax.custom_derivatives import SymbolicZero

from amprewrite.frameworks.jaxpr.binders import Dot, Other, binder
from amprewrite.frameworks.jaxpr.calibrate import emits_accumulators
from amprewrite.frameworks.jaxpr.untyped import ad, batching, jax, jex, jnp, lax, mlir


@dataclass(frozen=True, slots=True)
class Contraction:
    """One contraction; hashable, as custom rules want their static arguments.

    Attributes:
        bind: Binds the primitive.
        low: Name of the low dtype, in which derivatives are contracted.
        full: Name of the full dtype, that of the accumulator.
        made: Which of them the kernel hands back.
        reads: Which of them the kernel reads.
    """

    bind: Dot | Other
    low: str
    full: str
    made: str
    reads: str

    def value(self, lhs: Any, rhs: Any) -> Any:
        """Return the contraction of two operands of either dtype."""
        reads = self.reads
        return self.bind(_cast(lhs, reads), _cast(rhs, reads), self.made)


Sources = tuple[Any, Any]
"""For each operand the full value that it was cast from, or None."""


def contract(
    bind: Dot | Other,
    operands: tuple[Any, Any],
    dtypes: tuple[str, str],
    wanted: str,
    sources: Sources = (None, None),
) -> Any:
    """Contract low ``operands`` into a result of dtype ``wanted``.

    Where the backend is faster so (see :mod:`calibrate`), the accumulator is rounded
    afterwards instead of by the kernel.

    Args:
        bind: Binds the primitive.
        operands: Both operands.
        dtypes: Names of the low and the full dtype.
        wanted: Which of them the result has.
        sources: What gets the cotangent in the place of an operand, unrounded.
    """
    low, full = dtypes
    emits = wanted == full or emits_accumulators(jax.default_backend())
    of = Contraction(bind, low, full, full if emits else low, low)
    given = [x for x in sources if x is not None]
    known = tuple(x is not None for x in sources)
    return rounded(of, wanted, known)(*operands, *given)


def accumulated(
    bind: Dot | Other, operands: tuple[Any, Any], dtypes: tuple[str, str]
) -> Any:
    """Contract ``operands`` in full precision, and their derivatives in low.

    Args:
        bind: Binds the primitive.
        operands: Both operands.
        dtypes: Names of the low and the full dtype.
    """
    low, full = dtypes
    return rounded(Contraction(bind, low, full, full, full), full)(*operands)


def contract_tangents(
    bind: Dot | Other, operands: tuple[Any, Any], dtypes: tuple[str, str], wanted: str
) -> Any:
    """Contract low ``operands``, one of them a tangent; JAX may transpose it."""
    return tangent_p.bind(*operands, of=Contraction(bind, *dtypes, wanted, dtypes[0]))


@lru_cache(maxsize=4096)
def rounded(
    of: Contraction, wanted: str, known: tuple[bool, ...] = (False, False)
) -> Any:
    """Return the function of two operands that gives the sums in dtype ``wanted``.

    It takes the sources after them, of the operands whose source is ``known``.

    Layers of a model have equal contractions: JAX traces and lowers each kind once. A
    transformer with 73 was emitted in three quarters of the time then.
    """
    accumulate = accumulator(of, known)

    def contraction(*given: Any) -> Any:
        return _cast(accumulate(*given), wanted)

    return jax.jit(contraction)


def accumulator(of: Contraction, known: tuple[bool, ...] = (False, False)) -> Any:
    """Return the function, as :func:`rounded`, that gives what the kernel hands back.

    The tangent of a source takes the place of that of its operand, for it is the same
    before it is rounded.
    """

    @jax.custom_jvp
    def accumulate(lhs: Any, rhs: Any, *_: Any) -> Any:
        return of.value(lhs, rhs)

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        lhs, rhs = (_cast(x, of.low) for x in primals[:2])  # what is kept
        low = of.reads == of.low
        out = accumulate(*((lhs, rhs) if low else primals[:2]), *primals[2:])
        given = iter(tangents[2:])
        pairs = zip(tangents[:2], known, strict=True)
        one, other = (next(given) if flag else tangent for tangent, flag in pairs)
        linear = replace(of, reads=of.low)
        parts: list[Any] = []
        if not isinstance(one, SymbolicZero):
            parts.append(tangent_p.bind(one, rhs, of=linear))
        if not isinstance(other, SymbolicZero):
            parts.append(tangent_p.bind(lhs, other, of=linear))
        if not parts:
            return out, SymbolicZero(jax.typeof(out).to_tangent_aval())
        return out, parts[0] if len(parts) == 1 else parts[0] + parts[1]

    accumulate.defjvp(jvp, symbolic_zeros=True)
    return accumulate


def _cast(value: Any, dtype: str) -> Any:
    return lax.convert_element_type(value, jnp.dtype(dtype))


tangent_p = jex.Primitive("low_contraction")
"""Contracts two operands, low or full, as its parameter ``of`` says; bilinear."""


def _value(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    return of.value(lhs, rhs)


def _abstract(lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    """Shape, sharding and manual axes are those that JAX finds for the primitive."""
    lows = [x.update(dtype=jnp.dtype(of.low), weak_type=False) for x in (lhs, rhs)]
    params = {**dict(of.bind.params), "preferred_element_type": jnp.dtype(of.made)}
    aval, _ = of.bind.primitive.abstract_eval(*lows, **params)
    return aval


def _batched(axis: Any, operands: Any, dims: Any, *, of: Contraction) -> Any:
    """Batch as JAX does, and bind the contractions that come out as tangents again."""
    rule = batching.fancy_primitive_batchers[of.bind.primitive]
    made: list[Any] = []

    def run(*lows: Any) -> Any:
        out, dim = rule(axis, lows, dims, **dict(of.bind.params))
        made.append(dim)
        return out

    lows = [_cast(x, of.low) for x in operands]

    def bind(of: Contraction, pair: Any) -> Any:
        return tangent_p.bind(*pair, of=of)

    return _again(run, lows, operands, of, bind), made[0]


def _transposed(side: int, ct: Any, lhs: Any, rhs: Any, *, of: Contraction) -> Any:
    """Return the cotangent of one operand, in the dtype of that operand.

    The sum over what was contracted is handed back in full where it may run over
    several devices, and where it is wanted so. One CPU rounds it all the same, for it
    is faster so: the other way a step in bfloat16 took 1.04 of the time (a transformer)
    to 1.2 (a recurrent network), measured without bfloat16 instructions.
    """
    operand, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    aval = operand.aval.update(dtype=jnp.dtype(of.full), weak_type=False)
    wanted = str(operand.aval.dtype)
    direct = wanted == of.full and jax.default_backend() != "cpu"
    wide = direct or jax.device_count() > 1
    sums = replace(of, made=of.full if wide else of.low, reads=of.low)
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
        return accumulator(of)(*pair)

    def contraction(ct: Any, other: Any) -> Any:
        lows = _cast(ct, of.low), _cast(other, of.low)
        return _cast(_again(run, lows, lows, of, bind), of.made)

    return jax.jit(contraction)


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


tangent_p.def_impl(_value)
tangent_p.def_abstract_eval(_abstract)
mlir.register_lowering(tangent_p, mlir.lower_fun(_value, multiple_results=False))
batching.fancy_primitive_batchers[tangent_p] = _batched
ad.defbilinear(tangent_p, partial(_transposed, 0), partial(_transposed, 1))
