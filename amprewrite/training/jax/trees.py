"""Trees of arrays: finiteness, selection, and partition into floats and the rest."""

# JAX's own types are partial: a type checker does not know its functions' results.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.capture.trace import part_name
from amprewrite.frameworks.jaxpr.compat.tracers import is_tracer
from amprewrite.frameworks.jaxpr.compat.untyped import jnp, lax, tree_util
from amprewrite.frameworks.jaxpr.function.adapters import calling

Tree = Any
"""Any pytree."""

NUMBERS = (bool, int, float, complex)
"""Types of Python numbers, which are leaves as arrays are."""


def is_inexact_array(leaf: object) -> bool:
    """Return whether a leaf is an array of floats or complex numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def is_inexact(leaf: object) -> bool:
    """Return whether a leaf is a float or complex number, or an array of them."""
    return isinstance(leaf, (float, complex)) or is_inexact_array(leaf)


def finite_leaves(tree: Tree, axis_name: Any = None) -> Any:
    """Return for each float leaf whether it is finite, as one array of bools.

    Args:
        tree: Any pytree; leaves that are no floats are finite and are left out.
        axis_name: Mapped axis, or axes, of ``shard_map`` or ``pmap``: a leaf must be
            finite on all their devices. Under ``jit`` an array is one array on any
            number of devices, and needs none. ``()`` is none, too.
    """
    leaves = filter(is_inexact, tree_util.tree_leaves(tree))
    flags = [jnp.isfinite(leaf).all() for leaf in leaves]
    found = jnp.stack(flags) if flags else jnp.ones((0,), jnp.bool_)
    if axis_name is None or axis_name == ():
        return found
    return lax.psum((~found).astype(jnp.int32), axis_name) == 0


def all_finite(tree: Tree, axis_name: Any = None) -> Any:
    """Return whether all floats in a tree are finite, as a bool scalar.

    Args:
        tree: Any pytree; an empty one is finite.
        axis_name: See :func:`finite_leaves`.
    """
    return finite_leaves(tree, axis_name).all()


def select_tree(pred: Any, a: Tree, b: Tree) -> Tree:
    """Return ``a`` where ``pred`` is true, else ``b``, leaf by leaf, bit for bit.

    Python numbers that differ become arrays; equal ones are unchanged, as they may be
    settings. Leaves that are no numbers are taken from ``a``.

    Args:
        pred: A bool, or a bool scalar.
        a: A pytree.
        b: A pytree of the same structure, dtypes and shapes.

    Raises:
        ValueError: ``pred`` is no bool scalar, or the trees differ in a dtype or shape.
    """
    if jnp.ndim(pred) or jnp.result_type(pred) != jnp.bool_:
        msg = (
            f"select_tree: pred is {jnp.result_type(pred)} of shape "
            f"{jnp.shape(pred)}; want a bool scalar, such as all_finite gives"
        )
        raise ValueError(msg)

    def choose(path: Any, one: Any, other: Any) -> Any:
        if isinstance(one, NUMBERS) and isinstance(other, NUMBERS):
            return one if one == other else jnp.where(pred, one, other)
        if not hasattr(one, "dtype"):
            return one
        if _type(one) != _type(other):
            msg = (
                f"select_tree: leaf {tree_util.keystr(path) or 'at the root'} is "
                f"{_type(one)} in one tree and {_type(other)} in the other; want the "
                f"same dtype and shape, so that neither is rounded"
            )
            raise ValueError(msg)
        return lax.select(jnp.asarray(pred), one, other)

    return tree_util.tree_map_with_path(choose, a, b)


def _type(leaf: Any) -> str:
    named = jnp.asarray(leaf) if isinstance(leaf, NUMBERS) else leaf
    dtype = getattr(named, "dtype", type(named).__name__)
    return f"{dtype}[{','.join(map(str, jnp.shape(named)))}]"


def partition(tree: Tree) -> tuple[Tree, Tree]:
    """Return a tree of the float arrays, and one of the rest; None for the others."""
    kept = tree_util.tree_map(lambda x: x if is_inexact_array(x) else None, tree)
    rest = tree_util.tree_map(lambda x: None if is_inexact_array(x) else x, tree)
    return kept, rest


def combine(kept: Tree, rest: Tree) -> Tree:
    """Return the tree that :func:`partition` split in two."""

    def either(one: Any, other: Any) -> Any:
        return other if one is None else one

    return tree_util.tree_map(either, kept, rest, is_leaf=is_none)


def is_none(leaf: object) -> bool:
    """Return whether a leaf was left out by :func:`partition`."""
    return leaf is None


def name_of_leaf(tree: Tree, position: int) -> str:
    """Return the path of a float array by its position; empty if it is not there."""
    found = tree_util.tree_flatten_with_path(tree)[0]
    paths = [path for path, leaf in found if is_inexact_array(leaf)]
    if not 0 <= position < len(paths):
        return ""
    return ".".join(map(part_name, paths[position])) or "the parameter"


def is_traced(tree: Tree) -> bool:
    """Return whether a tree is inside a transformation, where values are not known."""
    return any(map(is_tracer, tree_util.tree_leaves(tree)))


# Stateful models of ``flax.nnx``, split into arrays and merged again.


def _nnx() -> Any:
    """Return ``flax.nnx``; None if it is not loaded, so that there is no model."""
    return sys.modules.get("flax.nnx")


@dataclass(frozen=True)
class Models:
    """The models among positional arguments.

    Attributes:
        models: By position.
        parts: By position: structure, parameters and other state of the model.
    """

    models: Mapping[int, Any]
    parts: Mapping[int, tuple[Any, Any, Any]]

    def __bool__(self) -> bool:
        """Whether there are models."""
        return bool(self.models)

    @property
    def held(self) -> dict[int, tuple[Any, Any]]:
        """Structure and state other than parameters, by position."""
        return {i: (parts[0], parts[2]) for i, parts in self.parts.items()}

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with each model replaced by its parameters."""
        return tuple(
            self.parts[index][1] if index in self.parts else arg
            for index, arg in enumerate(args)
        )

    def update(self, finite: Any, state: Mapping[int, Any] | None) -> None:
        """Write the new state into the models, if the gradients are finite."""
        for index, new in (state or {}).items():
            kept = select_tree(finite, new, self.parts[index][2])
            _nnx().update(self.models[index], kept)


def held_models(args: tuple[Any, ...]) -> Models:
    """Return the models among positional arguments, split into parts."""
    nnx = _nnx()
    if nnx is None:
        return Models({}, {})
    models = {i: arg for i, arg in enumerate(args) if isinstance(arg, nnx.Module)}
    parts = {i: tuple(nnx.split(m, nnx.Param, ...)) for i, m in models.items()}
    return Models(models, parts)


def pure(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fun`` as a pure function of the models' arrays.

    Its first argument is :attr:`Models.held`. It returns the result of ``fun`` and the
    new state of the models, by position.
    """

    @functools.wraps(fun)
    def run(held: Mapping[int, Any], *args: Any, **kwargs: Any) -> Any:
        nnx = _nnx()
        models = {
            index: nnx.merge(graphdef, args[index], rest, copy=True)
            for index, (graphdef, rest) in held.items()
        }
        given = tuple(models.get(index, arg) for index, arg in enumerate(args))
        with calling(fun, given, kwargs):
            made = fun(*given, **kwargs)
        return made, {i: nnx.state(m, nnx.Not(nnx.Param)) for i, m in models.items()}

    del run.__wrapped__  # it has one argument more
    return run
