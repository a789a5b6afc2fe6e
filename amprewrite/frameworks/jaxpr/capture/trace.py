"""Trace a function: arrays are inputs, all other arguments are part of the program.

It uses JAX's own cache of traces, with a key of everything that a trace depends on
(types of arrays, meshes, axis names, settings): each signature is traced once.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from amprewrite.dtypes import Processor
from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.jaxpr.capture.promotion_tracing import tracing
from amprewrite.frameworks.jaxpr.compat import written_casts
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.user_code import raised_at


@dataclass(frozen=True)
class Call:
    """The arguments of a call without its arrays, hashable as a key of programs.

    Attributes:
        tree: Structure of ``(args, kwargs)``.
        fixed: The leaves other than arrays, by position, each with its type.
    """

    tree: Any
    fixed: tuple[tuple[int, type, Any], ...]

    def arguments(self, arrays: Sequence[Any]) -> Any:
        """Return the tree, such as ``(args, kwargs)``, with ``arrays`` in it."""
        values = {index: value for index, _, value in self.fixed}
        supply = iter(arrays)
        leaves = [
            values[i] if i in values else next(supply)
            for i in range(self.tree.num_leaves)
        ]
        return tree_util.tree_unflatten(self.tree, leaves)


@tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Result:
    """The result of a function: its arrays, and other leaves in the structure."""

    arrays: tuple[Any, ...]
    call: Call

    def tree_flatten(self) -> tuple[tuple[Any, ...], Call]:
        """Return the arrays as leaves, and the rest as structure."""
        return self.arrays, self.call

    @classmethod
    def tree_unflatten(cls, call: Call, arrays: Any) -> "Result":
        """Return the result rebuilt from ``arrays``."""
        return cls(tuple(arrays), call)


@dataclass(frozen=True)
class Traced:
    """The trace of a function for one signature.

    Attributes:
        closed: The ClosedJaxpr.
        result: Structure of the outputs.
        reusable: Whether it is valid for other calls: it captured no tracer.
    """

    closed: Any
    result: Call
    reusable: bool


_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an input of the program: an array, or its shape."""
    return isinstance(leaf, _ARRAYS) or hasattr(leaf, "__jax_array__")


def check_values(what: str, arrays: Iterable[object]) -> None:
    """Check that arrays have values, before the program is run.

    Args:
        what: Name of the caller, for the message.
        arrays: The inputs of the program.

    Raises:
        UnsupportedError: One is a ``jax.ShapeDtypeStruct``.
    """
    found = next((x for x in arrays if isinstance(x, jax.ShapeDtypeStruct)), None)
    if found is not None:
        msg = (
            f"{what} runs the program, and has no values for {found}; want arrays "
            f"(shapes do to convert and to inspect)"
        )
        raise UnsupportedError(msg)


def as_array(leaf: Any) -> Any:
    """Return an input of the program as an array of JAX or NumPy."""
    convert = getattr(leaf, "__jax_array__", None)
    return leaf if convert is None else convert()


def split(tree: Any) -> tuple[Call, list[Any]]:
    """Return a tree split into its arrays and the rest."""
    leaves, structure = tree_util.tree_flatten(tree)
    fixed: list[tuple[int, type, Any]] = [
        (i, type(leaf), leaf) for i, leaf in enumerate(leaves) if not is_array(leaf)
    ]
    return Call(structure, tuple(fixed)), [leaf for leaf in leaves if is_array(leaf)]


def input_names(tree: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each array of ``(args, kwargs)``.

    Args:
        tree: The arguments.
        names: Names of the positional parameters that are known.
    """
    found = tree_util.tree_flatten_with_path(tree)[0]
    return tuple(leaf_name(path, names) for path, leaf in found if is_array(leaf))


def leaf_name(path: tuple[Any, ...], names: Sequence[str]) -> str:
    """Return a name for a leaf of ``(args, kwargs)``.

    Args:
        path: Its path, as JAX gives it.
        names: Names of the positional parameters that are known.
    """
    head, *rest = path
    parts = [part_name(key) for key in rest]
    if getattr(head, "idx", 1) == 0 and parts:
        index = int(parts[0])
        parts[0] = names[index] if index < len(names) else f"args.{index}"
    return re.sub(r"[^\w.]+", "_", ".".join(parts)).strip("_") or "input"


def part_name(key: Any) -> str:
    """Return one key of a path in a tree: a key, an index or a field."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


class Tracer:
    """Tracer of one function, with a cached trace for each signature."""

    def __init__(
        self, function: Callable[..., Any], processor: Processor | None = None
    ) -> None:
        """Wrap the function for tracing.

        Args:
            function: The function.
            processor: Promotes operands; None leaves promotion to JAX.
        """

        def flat(call: Call, *arrays: Any) -> Result:
            args, kwargs = call.arguments(arrays)
            rest, made = split(function(*args, **kwargs))
            return Result(tuple(made), rest)

        self.function, self.flat = function, flat
        self.jitted = jax.jit(flat, static_argnums=0)
        self.processor = processor

    def trace(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """Return the program of a call.

        Raises:
            CaptureError: The function fails, or a static argument has no hash.
            ComplexTruncationError: A loop would carry complex numbers as real ones.
        """
        with tracing(self.processor):
            return self._trace(args, kwargs)

    def casts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call casts float32 to itself; the function is run again."""
        seen: list[None] = []
        noting = written_casts.noting_casts(partial(seen.append, None))
        with tracing(self.processor), noting:
            self._call(args, kwargs)
        return bool(seen)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call, arrays = split((tuple(args), dict(kwargs)))
        return jax.make_jaxpr(partial(self.flat, call))(*arrays)

    def trace_low(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], low: str
    ) -> tuple[Any, int]:
        """Return the ClosedJaxpr of a call with its float32 arrays in ``low``.

        Operands are promoted where they meet other dtypes, such as constants.

        Returns:
            The program, and the number of casts of float32 to itself that it omits.
        """
        call, arrays = split((tuple(args), dict(kwargs)))
        dtype = jnp.dtype(low)
        types = [
            jax.ShapeDtypeStruct(x.shape, dtype) if x.dtype == np.float32 else x
            for x in map(as_array, arrays)
        ]
        left_out: list[None] = []
        note = partial(left_out.append, None)
        noting = written_casts.noting_casts(note, "low")
        quiet = np.errstate(all="ignore")  # of numbers beyond the range of ``low``
        with tracing(Processor("jax")), noting, quiet:
            closed = jax.make_jaxpr(partial(self.flat, call))(*types)
        return closed, len(left_out)

    def _trace(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        call, arrays = split((tuple(args), dict(kwargs)))
        _check_hashable(call, (tuple(args), dict(kwargs)))
        try:
            traced = self.jitted.trace(call, *arrays)
            if len(traced.jaxpr.jaxpr.invars) == len(arrays):
                return Traced(traced.jaxpr, traced.out_info.call, reusable=True)
            closed, result = jax.make_jaxpr(
                partial(self.flat, call), return_shape=True
            )(*arrays)
        except (jax.errors.JAXTypeError, jax.errors.UnexpectedTracerError) as error:
            raise CaptureError(_message(error)) from error
        return Traced(closed, result.call, reusable=False)


def _check_hashable(call: Call, arguments: Any) -> None:
    """Check that the static arguments are hashable.

    Raises:
        UnsupportedError: Names the first argument that has no hash.
    """
    for index, kind, leaf in call.fixed:
        try:
            hash(leaf)
        except TypeError as error:
            found = tree_util.tree_flatten_with_path(arguments)[0]
            paths = [path for path, _ in found]
            where = tree_util.keystr(paths[index][1:])
            msg = (
                f"argument {where}: a {kind.__name__} is no array and thus part of the "
                f"program, and it has no hash to tell programs apart; want an array, a "
                f"pytree, or an object with __hash__ and __eq__"
            )
            raise UnsupportedError(msg) from error


def _message(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    line = raised_at(error)
    where = f" at {PurePath(line[0]).name}:{line[1]}" if line else ""
    return (
        f"cannot trace the function{where}: {text} A traced function must not decide "
        f"by the values of arrays in Python; use jax.lax.cond, or make the argument "
        f"static by passing a Python value"
    )
