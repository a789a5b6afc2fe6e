"""Find the framework of a model; none is imported before it is needed."""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Framework


def torch_fx() -> Framework:
    """Return the framework of torch."""
    from amprewrite.frameworks.torch_fx import framework

    return framework


def jaxpr() -> Framework:
    """Return the framework of JAX."""
    from amprewrite.frameworks.jaxpr import framework

    return framework


def _is_torch(model: object) -> bool:
    """Return whether ``model`` is a module or an exported program of torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds: list[type] = [torch.nn.Module]
    if "torch.export" in sys.modules:
        kinds.append(torch.export.ExportedProgram)
    return isinstance(model, tuple(kinds))


def _is_jax(model: object) -> bool:
    """Return whether ``model`` is a function, or a module of Equinox or Flax."""
    if "jax" not in sys.modules:
        return False
    names = ("equinox", "flax.linen", "flax.nnx")
    loaded: list[Any] = [sys.modules.get(name) for name in names]
    is_module = any(found and isinstance(model, found.Module) for found in loaded)
    return is_module or (callable(model) and not isinstance(model, type))


TAKES: Mapping[str, tuple[Callable[[object], bool], Callable[[], Framework]]] = {
    "torch": (_is_torch, torch_fx),
    "jax": (_is_jax, jaxpr),
}
"""For each package, a test for its models and a loader of its framework."""


def framework_of(model: object) -> Framework:
    """Return the framework of ``model``, importing it if needed.

    Raises:
        UnsupportedError: The model is of no supported kind.
    """
    for is_of, load in TAKES.values():
        if is_of(model):
            return load()
    msg = (
        f"cannot convert a {type(model).__name__}; want a torch.nn.Module, "
        f"torch.fx.GraphModule, torch.export.ExportedProgram, or with JAX imported a "
        f"function, equinox.Module, flax.linen.Module or flax.nnx.Module"
    )
    raise UnsupportedError(msg)


def framework_of_result(model: object) -> Framework:
    """Return the framework of a model, or of a result of ``torch.compile``.

    Raises:
        UnsupportedError: The model is of no supported kind.
    """
    if "torch" in sys.modules and hasattr(model, "_torchdynamo_orig_callable"):
        return torch_fx()
    return framework_of(model)


def installed() -> Mapping[str, Framework]:
    """Return the frameworks of the installed packages, by package name."""
    names = [name for name in TAKES if find_spec(name) is not None]
    return {name: TAKES[name][1]() for name in names}
