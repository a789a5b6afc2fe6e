"""Private and changing names of JAX, used in this module only."""

import functools
import inspect
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
from jax._src import core as memories
from jax._src.interpreters import partial_eval as policies
from jax._src.lax import lax as lax_functions
from jax.extend import linear_util, source_info_util
from jax.flatten_util import ravel_pytree

from amprewrite.frameworks.jaxpr.compat.untyped import jax, jex
from amprewrite.user_code import is_in, is_users, runs_users

Eqn = Any
"""A ``jax.extend.core.JaxprEqn``; its attributes carry no types in JAX."""


def is_tracer(value: object) -> bool:
    """Return whether ``value`` is a tracer: an array inside a transformation."""
    return isinstance(value, jax.core.Tracer)


def evaluated_now() -> AbstractContextManager[Any]:
    """Evaluate the context's body eagerly, even inside a trace.

    Outside of a trace it is a null context: inside ``ensure_compile_time_eval``, JAX
    forgets the axes of a manual mesh.
    """
    if is_tracer(jax.numpy.zeros(())):
        return jax.ensure_compile_time_eval()
    return nullcontext()


def is_literal(atom: object) -> bool:
    """Return whether an operand of an equation is a literal number."""
    return isinstance(atom, jex.Literal)


def bind_params(eqn: Eqn) -> dict[str, Any]:
    """Return the parameters to bind the primitive of ``eqn`` again."""
    return dict(eqn.primitive.get_bind_params(eqn.params))


def wrapped(fun: Callable[..., Any], like: Any) -> Any:
    """Return ``fun`` wrapped for a custom rule, with the debug names of ``like``."""
    wrap: Any = vars(linear_util)["wrap_init"]  # its annotations are incomplete
    return wrap(fun, debug_info=like.debug_info)


def place_of(eqn: Eqn, name_stack: Any) -> AbstractContextManager[Any]:
    """Give equations bound inside the traceback of ``eqn`` and the given scopes."""
    stack = source_info_util.current_name_stack() + name_stack
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)


def scopes(name_stack: Any) -> tuple[str, ...]:
    """Return the names in a name stack, outermost first, without transformations."""
    if not name_stack.stack:
        return ()
    kinds = (e for e in name_stack.stack if type(e).__name__ == "Scope")
    return tuple([element.name for element in kinds])


def transformations(name_stack: Any) -> frozenset[str]:
    """Return the transformations that made an equation, such as ``jvp``."""
    found = (e for e in name_stack.stack if type(e).__name__ == "Transform")
    return frozenset(element.name for element in found)


def current_line() -> str:
    """Return ``file:line`` of the user's own code that is being traced."""
    frame = inspect.currentframe()
    while frame is not None:
        if runs_users(frame):
            file = frame.f_code.co_filename
            return f"{os.path.basename(file)}:{frame.f_lineno}"  # noqa: PTH119  # a frame holds a plain string
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def source_line(traceback: Any) -> str:
    """Return ``file:line`` of the innermost frame of the user's own code."""
    if traceback is None:
        return ""
    for frame in traceback.frames:
        if is_users(frame.file_name):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"  # noqa: PTH119  # a frame holds a plain string
    return ""


CASTS = frozenset(("array", "astype", "convert_element_type"))
"""Functions of JAX that users call to cast."""

WRAPPERS = CASTS | {"_astype", "asarray", "meth", "__call__"}
"""Functions of JAX between a user and a cast: methods of arrays and dtypes."""


@functools.lru_cache(maxsize=4096)
def is_written_cast(traceback: Any) -> bool:
    """Return whether an equation is a cast that the user wrote.

    It depends on the functions of JAX below the innermost frame outside of JAX: a
    promotion or a library function has others. Casts in the layers of a library are
    decided by the classes of their ops.
    """
    frames = traceback.frames if traceback is not None else ()
    return _is_cast((frame.file_name, frame.function_name) for frame in frames)


def _is_cast(frames: Iterable[tuple[str, str]]) -> bool:
    names: list[str] = []
    for file, name in frames:
        if is_in(file, "amprewrite"):
            continue  # our own promotion during a trace
        if not is_in(file, "jax", "jaxlib"):
            first = next((i for i, n in enumerate(names) if n in CASTS), len(names))
            outer = names[first:]
            return bool(outer) and WRAPPERS.issuperset(outer) and is_users(file)
        names.append(name.rpartition(".")[2])
    return False


@contextmanager
def noting_casts(note: Callable[[], None]) -> Generator[None]:
    """Call ``note`` for each written cast of float32 to itself, which JAX omits.

    If JAX has no such private function, nothing is noted.
    """
    convert = getattr(lax_functions, "_convert_element_type", None)
    if convert is None:
        yield
        return

    def noted(operand: Any, new_dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _is_full(operand, new_dtype) and _is_cast(_frames()):
            note()
        return convert(operand, new_dtype, *args, **kwargs)

    with mock.patch.object(lax_functions, "_convert_element_type", noted):
        yield


def _is_full(operand: Any, new_dtype: Any) -> bool:
    """Return whether a traced float32 array is cast to float32."""
    if new_dtype is None or not is_tracer(operand) or operand.dtype != np.float32:
        return False
    return np.dtype(new_dtype) == np.float32


def _frames() -> Iterator[tuple[str, str]]:
    """Yield the file and the function of each frame of the current stack."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def files_of(traceback: Any) -> frozenset[str]:
    """Return the files of the frames of an equation."""
    frames = traceback.frames if traceback is not None else ()
    return frozenset(frame.file_name for frame in frames)


def is_unravelled(traceback: Any) -> bool:
    """Return whether an equation splits an array that ``ravel_pytree`` joined."""
    return inspect.getfile(ravel_pytree) in files_of(traceback)


def file_of(eqn: Eqn) -> str:
    """Return the file of the function that a ``jit`` calls; empty if not known."""
    info = getattr(body_of(eqn).jaxpr, "debug_info", None)
    return getattr(info, "func_filename", None) or ""


def body_of(eqn: Eqn) -> Any:
    """Return the only body of ``eqn``; its name differs between versions."""
    params = eqn.params
    return params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]


def scan_counts(eqn: Eqn) -> tuple[int, int]:
    """Return the numbers of constants and carries of a scan; slices follow."""
    params = eqn.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()  # jax 0.11
    return len(consts), len(carries)


def is_plain_jit(eqn: Eqn) -> bool:
    """Return whether a ``jit`` only calls: it fixes no sharding and donates nothing."""
    params = eqn.params
    named = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")
    fixed = (part for key in named for part in params.get(key) or ())
    unfixed = all(part is None or _is_unspecified(part) for part in fixed)
    return unfixed and not any(params.get("donated_invars") or ())


def _is_unspecified(sharding: object) -> bool:
    return type(sharding).__name__ == "UnspecifiedValue"


def manual_axes(eqn: Eqn) -> set[Any]:
    """Return the mesh axes that a ``shard_map`` makes manual."""
    named = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", ()))
    return set(named)


def sharding_argument(sharding: object) -> Any:
    """Return a sharding for ``jax.jit``: None where it is not specified."""
    return None if _is_unspecified(sharding) else sharding


def varying_as(number: Any, value: Any) -> Any:
    """Return ``number`` varying over the same mesh axes as ``value``.

    In a manual mesh, the derivative of a value that is equal everywhere is a sum.
    """
    axes = _varying(value) - _varying(number)
    return jax.lax.pcast(number, tuple(axes), to="varying") if axes else number


def _varying(value: Any) -> frozenset[Any]:
    """Return the manual mesh axes over which ``value`` varies."""
    aval = jax.typeof(value)
    kind = getattr(aval, "manual_axis_type", None)  # jax 0.10; vma before
    return getattr(aval, "vma", frozenset()) if kind is None else kind.varying


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
