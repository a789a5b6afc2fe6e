"""Bind primitives of JAX, and define primitives of one array."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from jax._src import core as memories
from jax._src.interpreters import partial_eval as policies

from amprewrite.frameworks.jaxpr.compat.untyped import (
    ad,
    batching,
    jax,
    jex,
    jnp,
    lax,
    mlir,
)

_PLAIN = frozenset(("float32", "bfloat16", "float16"))
"""Float dtypes that no setting of JAX replaces by others, as it does float64."""


def bind(
    primitive: Any, operands: Iterable[Any], params: Mapping[str, Any]
) -> list[Any]:
    """Return the results of a primitive: a list, also of a single result.

    Args:
        primitive: The primitive.
        operands: Its operands.
        params: Its parameters, as :func:`equations.bind_params` returns them.
    """
    results = primitive.bind(*operands, **params)
    return list(results) if primitive.multiple_results else [results]


def convert(value: Any, dtype: str) -> Any:
    """Return an array of floats in the float dtype called ``dtype``.

    It is ``lax.convert_element_type`` without its checks of other operands and dtypes,
    which take a third of the time to trace a cast.
    """
    if dtype not in _PLAIN or not isinstance(value, jax.Array):
        return lax.convert_element_type(value, jnp.dtype(dtype))
    if str(value.dtype) == dtype and not value.weak_type:
        return value
    return _convert(value, _dtype(dtype), weak=False)


def as_weak(value: Any) -> Any:
    """Return an array weakly typed, as the result of a Python number is."""
    return _convert(value, value.dtype, weak=True)


def _convert(value: Any, dtype: Any, *, weak: bool) -> Any:
    params = {"new_dtype": dtype, "weak_type": weak, "sharding": None}
    return bind(lax.convert_element_type_p, (value,), params)[0]


@cache
def _dtype(name: str) -> Any:
    return jnp.dtype(name)


def new_unary(
    name: str,
    tangent: Callable[..., Any],
    cotangent: Callable[..., Any],
    value: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return a function of an array that binds a new primitive.

    The result has the shape and dtype of the array. Parameters are keywords of the
    function, and of each of the functions below. Zero tangents and cotangents pass.

    Args:
        name: Name of the primitive.
        tangent: Function of a tangent.
        cotangent: Function of a cotangent.
        value: Function of the array; None for the identity.
    """
    primitive = jex.Primitive(name)

    def bound(x: Any, **params: Any) -> Any:
        return bind(primitive, (x,), params)[0]

    def type_of(aval: Any, **_: Any) -> Any:
        return aval if value is None else aval.update(weak_type=False)

    def computed(x: Any, **params: Any) -> Any:
        return x if value is None else value(x, **params)

    def jvp(
        primals: tuple[Any], tangents: tuple[Any], **params: Any
    ) -> tuple[Any, Any]:
        moved = _unless_zero(tangent, tangents[0], params)
        primal = primals[0] if value is None else bound(primals[0], **params)
        return primal, moved

    def transposed(ct: Any, _x: Any, **params: Any) -> tuple[Any]:
        return (_unless_zero(cotangent, ct, params),)

    def batched(
        operands: tuple[Any], dims: tuple[Any], **params: Any
    ) -> tuple[Any, Any]:
        return bound(operands[0], **params), dims[0]

    primitive.def_impl(computed)
    primitive.def_abstract_eval(type_of)
    mlir.register_lowering(primitive, mlir.lower_fun(computed, multiple_results=False))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed
    batching.primitive_batchers[primitive] = batched
    return bound


def _unless_zero(
    function: Callable[..., Any], x: Any, params: Mapping[str, Any]
) -> Any:
    return x if isinstance(x, ad.Zero) else function(x, **params)


# Answers of the policies of ``jax.checkpoint``.


def is_saved(answer: Any) -> bool:
    """Return whether a policy of ``jax.checkpoint`` answered that a result is saved.

    Raises:
        TypeError: It is no answer; JAX's message lists the valid ones.
    """
    return isinstance(policies.ensure_enum(answer), policies.SaveableType)


def offloaded(answer: Any) -> tuple[Any, Any] | None:
    """Return the home and the offload memory of a result, if a policy moves it.

    Both are memories as ``jax.device_put`` takes them; None if it is not moved.
    """
    found = policies.ensure_enum(answer)
    if not isinstance(found, policies.Offloadable):
        return None
    home, away = map(memories.mem_kind_to_space, (found.src, found.dst))
    return home, away
