"""Trace a function: arrays are inputs, all other arguments are part of the program.

It uses JAX's own cache of traces, with a key of everything that a trace depends on
(types of arrays, meshes, axis names, settings): each signature is traced once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from amprewrite.dtypes import Processor
from amprewrite.errors import CaptureError, UnsupportedError
from amprewrite.frameworks.jaxpr.capture.promotion import tracing
from amprewrite.frameworks.jaxpr.compat import tracers
from amprewrite.frameworks.jaxpr.compat.untyped import jax, jnp, tree_util
from amprewrite.frameworks.jaxpr.program.program import dtype_name
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
        call: The arguments without their arrays.
        arrays: The arrays.
        closed: The ClosedJaxpr.
        result: Structure of the outputs.
        reusable: Whether it is valid for other calls: it captured no tracer.
    """

    call: Call
    arrays: list[Any]
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
        call, arrays = split((tuple(args), dict(kwargs)))
        _check_hashable(call, (tuple(args), dict(kwargs)))
        try:
            with tracing(self.processor):
                return self._trace(call, arrays)
        except (jax.errors.JAXTypeError, jax.errors.UnexpectedTracerError) as error:
            raise CaptureError(_message(error)) from error

    def casts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call casts float32 to itself; the function is run again."""
        call, arrays = split((tuple(args), dict(kwargs)))
        seen: list[None] = []
        noting = tracers.noting_casts(partial(seen.append, None))
        with tracing(self.processor), noting:
            jax.make_jaxpr(partial(self.flat, call))(*arrays)
        return bool(seen)

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
        noting = tracers.noting_casts(note, "low")
        quiet = np.errstate(all="ignore")  # of numbers beyond the range of ``low``
        with tracing(Processor("jax")), noting, quiet:
            closed = jax.make_jaxpr(partial(self.flat, call))(*types)
        return closed, len(left_out)

    def _trace(self, call: Call, arrays: list[Any]) -> Traced:
        traced = self.jitted.trace(call, *arrays)
        if len(traced.jaxpr.jaxpr.invars) == len(arrays):
            result = traced.out_info.call
            return Traced(call, arrays, traced.jaxpr, result, reusable=True)
        flat = partial(self.flat, call)
        closed, result = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        return Traced(call, arrays, closed, result.call, reusable=False)


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


# Names for the arrays of an output: their paths in its tree structure.

WHOLE = "output"
"""Name of an output that is one array."""


def named_arrays(tree: Any) -> dict[str, Any]:
    """Return the arrays of ``tree`` by their paths: ``layers.0.weight``."""
    found = tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(map(part_name, path)) or WHOLE: leaf
        for path, leaf in found
        if is_array(leaf)
    }


# Pairs of states: outputs that are updated versions of input arrays.
#
# A jaxpr does not record this, but the trees of inputs and outputs do: an array at the
# same path in the state is the same array before and after.


@dataclass(frozen=True)
class Position:
    """Placeholder for an array in a tree.

    Attributes:
        index: Position of the array among those of the call.
        dtype: Name of its dtype; empty if it is not known.
    """

    index: int
    dtype: str = ""


Pair = tuple[int, int]
"""Position of an output, and position of the input that it replaces."""


def positions(call: Call, arrays: Sequence[Any] = ()) -> Any:
    """Return the tree of a call with its arrays replaced by positions.

    Args:
        call: The call.
        arrays: Its arrays, for their dtypes.
    """
    count = call.tree.num_leaves - len(call.fixed)
    dtypes = [dtype_name(x) for x in arrays] or [""] * count
    return call.arguments([Position(i, dtype) for i, dtype in enumerate(dtypes)])


def replaced(before: Any, after: Any) -> Iterator[Pair]:
    """Yield the pairs of arrays at equal paths in ``after`` and ``before``.

    Args:
        before: A tree of positions among the input arrays.
        after: A tree of positions among the output arrays.
    """
    old = dict(_by_path(before))
    for path, output in _by_path(after):
        if path in old:
            yield output.index, old[path].index


def held_by(kind: type, before: Any, after: Any) -> Iterator[Pair]:
    """Yield the pairs of :func:`replaced` in the containers of ``kind``.

    A container replaces one with the same tree structure.
    """
    old = {tree_util.tree_structure(held): held for held in _holders(kind, before)}
    for held in _holders(kind, after):
        structure = tree_util.tree_structure(held)
        if structure in old:
            yield from replaced(old[structure], held)


def _holders(kind: type, held: Any) -> Iterable[Any]:
    def is_leaf(part: object) -> bool:
        return isinstance(part, kind)

    return filter(is_leaf, tree_util.tree_leaves(held, is_leaf=is_leaf))


def _by_path(held: Any) -> Iterator[tuple[tuple[str, ...], Position]]:
    for path, leaf in tree_util.tree_flatten_with_path(held)[0]:
        if isinstance(leaf, Position):
            yield tuple(map(part_name, path)), leaf


# Warn about Python numbers that vary: each value is a program of its own.
#
# A number among the arguments is a constant of the program, as it is in Python. Traced
# as an array instead, ``isinstance(n, int)``, ``f"{n}"`` and ``hasattr(n, "dtype")``
# would silently change, ``x ** 3`` would use another kernel, and ``n * n / 7`` would be
# rounded to float32 at each step.

MANY = 8
"""Largest number of values of one number without a warning: a few layers or modes."""


def numbers(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, complex]]:
    """Yield the Python numbers among the arguments of a call, each with its name.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        names: Names of the positional parameters, as far as they are known.
    """
    call = args, dict(kwargs)
    if not any(map(_is_number, tree_util.tree_leaves(call))):  # paths take longer
        return
    for path, leaf in tree_util.tree_flatten_with_path(call)[0]:
        if _is_number(leaf):
            yield leaf_name(path, names), leaf


def _is_number(leaf: object) -> bool:
    """Return whether a leaf is a number, and no truth value or enumeration."""
    return type(leaf) in (int, float, complex)


class Varying:
    """Counter of the values of each number for which programs were planned."""

    def __init__(self) -> None:
        """Start with no values."""
        self.values: dict[str, set[tuple[type, complex]]] = {}

    def add(self, found: Iterable[tuple[str, complex]]) -> Iterator[str]:
        """Count the numbers of a call that was planned.

        Args:
            found: Names and values, as :func:`numbers` yields them.

        Yields:
            A warning for each number that now exceeds ``MANY`` values.
        """
        for name, value in found:
            held = self.values.setdefault(name, set())
            if len(held) > MANY or (type(value), value) in held:
                continue
            held.add((type(value), value))
            if len(held) > MANY:
                yield (
                    f"the number {name} had {len(held)} values so far, each of which "
                    f"is traced and planned as a program of its own; where only its "
                    f"value varies and Python does not decide by it, pass an array, "
                    f"jnp.asarray({name}), to have one program for all"
                )
