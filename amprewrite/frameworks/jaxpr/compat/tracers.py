"""Traces: tracers, values inside of them, and the casts that the user wrote."""

import inspect
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import CodeType, FrameType
from typing import Any, Literal

import numpy as np
from jax import api_util
from jax._src.lax import lax as lax_functions
from jax.extend import linear_util

from amprewrite.frameworks.jaxpr.compat.binding import replaced
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex, partial_eval
from amprewrite.user_code import is_in, is_users

# Traces: tracers, values inside of them, and functions wrapped for them.

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


# Casts that the user wrote: known by the functions between the user and a cast.
#
# JAX omits a cast of float32 to itself, so such a cast is seen only while the function
# that writes it runs, and JAX runs a function once for each of its keys. Under
# :func:`noting_casts` the key is one of our own.

CASTS = frozenset(("array", "astype", "convert_element_type"))
"""Functions of JAX that users call to cast."""

WRAPPERS = CASTS | {"_astype", "asarray", "meth", "__call__"}
"""Functions of JAX between a user and a cast: methods of arrays and dtypes."""

Owner = Literal["own", "jax", "library", "user"]
"""Origin of a function; ``own`` is this package."""

_FULL = np.dtype(np.float32)

_OMITS = "_convert_element_type"
"""Private function of JAX that omits the cast."""

_owners: dict[int, tuple[CodeType, Owner]] = {}  # by identity: a hash takes longer
_note: ContextVar[Callable[[], None] | None] = ContextVar("note", default=None)
_noted: Any = jax.make_user_context("")  # in JAX's keys of traces
_runs = itertools.count()


def owner_of(code: CodeType) -> Owner:
    """Return the origin of a function."""
    found = _owners.get(id(code))
    if found is None:
        found = _owners[id(code)] = code, _owner_of(code.co_filename)
    return found[1]


def _owner_of(file: str) -> Owner:
    if is_in(file, "amprewrite"):
        return "own"
    if is_in(file, "jax", "jaxlib"):
        return "jax"
    return "user" if is_users(file) else "library"


def is_written_cast(traceback: Any) -> bool:
    """Return whether an equation is a cast that the user wrote.

    It depends on the functions of JAX below the innermost frame outside of JAX: a
    promotion or a library function has others. Casts in the layers of a library are
    decided by the classes of their ops.
    """
    return traceback is not None and _is_cast(traceback.raw_frames()[0])


def _is_cast(codes: Iterable[CodeType]) -> bool:
    casts = False
    for code in codes:  # innermost first
        known = _owners.get(id(code))
        owner = known[1] if known else owner_of(code)
        if owner == "own":
            continue  # our own promotion during a trace
        if owner != "jax":
            return casts and owner == "user"
        casts = casts or code.co_name in CASTS
        if casts and code.co_name not in WRAPPERS:
            return False
    return False


@contextmanager
def noting_casts(note: Callable[[], None], key: str = "") -> Generator[None]:
    """Call ``note`` for each written cast of float32 to itself, which JAX omits.

    In a version of JAX without the private function that omits the cast, ``note`` is
    called at once, since any may be.

    Args:
        note: Called without arguments.
        key: Traces under other keys are not used; empty for a new key.
    """
    if not hasattr(lax_functions, _OMITS):
        note()
        yield
        return

    around = _note.get()

    def noted() -> None:
        note()
        if around is not None:
            around()

    token = _note.set(noted)
    try:
        with (
            replaced((lax_functions, _OMITS, partial(partial, _seen))),
            _noted(key or f"run {next(_runs)}"),
        ):
            yield
    finally:
        _note.reset(token)


def _seen(
    convert: Any, operand: Any, new_dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Call the function of JAX, with casts of this thread noted."""
    note = _note.get()
    if note is not None and _is_full(operand, new_dtype) and _is_cast(_running()):
        note()
    return convert(operand, new_dtype, *args, **kwargs)


def _is_full(operand: Any, new_dtype: Any) -> bool:
    """Return whether a traced float32 array is cast to float32.

    A number is none: in a low trace JAX computes its cast, so that nothing is left.
    """
    if new_dtype is None or not is_tracer(operand) or operand.dtype != _FULL:
        return False
    return np.dtype(new_dtype) == _FULL and not is_traced_number(operand)


def _running() -> Iterator[CodeType]:
    """Yield the functions of the current stack, innermost first."""
    frame: FrameType | None = inspect.currentframe()
    frame = frame.f_back if frame is not None else None  # its own is no caller
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
