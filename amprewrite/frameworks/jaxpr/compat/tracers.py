"""Traces: tracers, values inside of them, and functions wrapped for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jax import api_util
from jax.extend import linear_util

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, partial_eval

_debug_info: Any = vars(api_util)["debug_info"]  # their annotations are incomplete
_kept: Any = vars(linear_util)["cache"]


def is_tracer(value: object) -> bool:
    """Return whether ``value`` is a tracer: an array inside a transformation."""
    return isinstance(value, jax.core.Tracer)


def is_traced_number(value: Any) -> bool:
    """Return whether ``value`` is a tracer of a number, a literal of its program."""
    return isinstance(getattr(value, "val", None), jex.Literal)


def evaluated_now() -> AbstractContextManager[Any]:
    """Evaluate the context's body eagerly, even inside a trace.

    Outside of a trace it is a null context: inside ``ensure_compile_time_eval``, JAX
    forgets the axes of a manual mesh.
    """
    if is_tracer(jax.numpy.zeros(())):
        return jax.ensure_compile_time_eval()
    return nullcontext()


def wrapped(fun: Callable[..., Any], like: Any) -> Any:
    """Return ``fun`` wrapped for a custom rule, with the debug names of ``like``."""
    wrap: Any = vars(linear_util)["wrap_init"]  # its annotations are incomplete
    return wrap(fun, debug_info=like.debug_info)


def traceable(fun: Callable[..., Any], count: int) -> Any:
    """Return ``fun`` wrapped for :func:`jaxpr_of`.

    Args:
        fun: Function of arrays alone that returns a list of arrays and closes over
            none.
        count: Number of its arguments.
    """
    wrap: Any = vars(linear_util)["wrap_init"]
    return wrap(fun, debug_info=_debug_info("jit", fun, (0,) * count, {}))


def jaxpr_of(fun: Any, operands: tuple[Any, ...]) -> Any:
    """Return the ClosedJaxpr of a function for operands of these types.

    JAX keeps it for as long as the function lives, by the types and by every setting
    that a trace depends on. ``jax.jit(fun).trace`` makes the same, and much about its
    arguments beside it, which takes as long as the trace of five equations.

    Args:
        fun: The function, as :func:`traceable` returns it.
        operands: Arrays.
    """
    return _jaxpr_of(fun, tuple([jax.typeof(x) for x in operands]))


@_kept
def _jaxpr_of(fun: Any, avals: tuple[Any, ...]) -> Any:
    jaxpr, _, constants = partial_eval.trace_to_jaxpr_dynamic(fun, avals)
    return jex.ClosedJaxpr(jaxpr, constants)


def varying_as(number: Any, value: Any) -> Any:
    """Return ``number`` varying over the same mesh axes as ``value``.

    In a manual mesh, the derivative of a value that is equal everywhere is a sum.
    """
    axes = _varying(value) - _varying(number)
    return jax.lax.pcast(number, tuple(axes), to="varying") if axes else number


def axes_apart(value: Any, like: Any) -> tuple[Any, ...]:
    """Return the manual mesh axes over which devices may have different values.

    With ``check_vma=False`` JAX does not know which values vary, so that they are all
    of the axes of ``shard_map`` and ``pmap``; a ``pmap`` without a name has none.

    Args:
        value: The value.
        like: A value that may vary over some axes: they are left out.
    """
    mesh: Any = jax.sharding.get_abstract_mesh()
    axes = [a for a in mesh.manual_axes if not str(a).startswith("_internal")]
    varying = _varying(value)
    if axes and (varying or _varying(jax.lax.axis_index(axes[0]))):
        axes = [axis for axis in axes if axis in varying - _varying(like)]
    return tuple(axes)


def _varying(value: Any) -> frozenset[Any]:
    """Return the manual mesh axes over which ``value`` varies."""
    aval = jax.typeof(value)
    kind = getattr(aval, "manual_axis_type", None)  # jax 0.10; vma before
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying
