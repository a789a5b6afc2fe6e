"""Find the model that a command names: a factory, an exported program, a folder."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

from amprewrite.errors import AmpError, TargetError
from amprewrite.user_code import raised_at

SAVED = ".pt2"
"""Suffix of an exported program of torch.

One of JAX (``.stablehlo``) is compiled already, and cannot be rewritten.
"""

_Found = TypeVar("_Found")

WANTED = "want FILE.py:name or package.module:name"

OTHERS = "a .pt2 file of torch.export.save, or a folder of save_pretrained"

GIVES = "(model, args) or (model, args, kwargs), args a tuple and kwargs a dict"


@dataclass(frozen=True)
class ModelCall:
    """A model and the arguments to call it with.

    Attributes:
        model: The model.
        args: Positional call arguments.
        kwargs: Keyword call arguments.
    """

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def load_factory(text: str) -> ModelCall:
    """Return the model and arguments that ``text`` names.

    A file that ends in ``.pt2`` is an exported program of torch, with the arguments
    that it was exported with; a folder holds a model of transformers, which is called
    with small inputs of its kind. Of ``FILE.py:name`` and ``package.module:name`` the
    name is a function without arguments that returns them, or a variable that
    holds them. A file runs as a script does, with its own folder on the import path,
    but not as ``__main__``.

    Raises:
        TargetError: There is no such file, module or name; its code fails; or it gives
            something else.
    """
    if Path(text).is_dir() or text.endswith(SAVED):
        return _load_saved(text)
    where, colon, name = text.rpartition(":")
    if not (where and colon and name.isidentifier()):
        msg = f"target {text!r}: {WANTED}, such as model.py:build; or {OTHERS}"
        raise TargetError(msg)
    module: ModuleType = run_users(text, lambda: _load_module(where))
    if not hasattr(module, name):
        near = get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"target {text!r}: {where} has no {name!r}{hint}"
        raise TargetError(msg)
    found = getattr(module, name)
    if isinstance(found, FunctionType):
        _check_takes_nothing(found, text)
        found = run_users(text, found)
    return _as_target(found, text)


def _load_saved(text: str) -> ModelCall:
    """Return the model in a file or folder that torch or transformers wrote.

    Raises:
        TargetError: There is none, or it cannot be loaded.
    """
    if find_spec("torch") is None:
        msg = f"target {text!r}: torch loads it; pip install 'amprewrite[torch]'"
        raise TargetError(msg)
    from amprewrite.frameworks.torch_fx.saved.models import load_saved

    return ModelCall(*load_saved(Path(text)))


def _check_takes_nothing(function: FunctionType, text: str) -> None:
    """Check that a function named on the command line takes no arguments.

    Raises:
        TargetError: It wants arguments.
    """
    parameters = signature(function).parameters.values()
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    free = [p for p in parameters if p.kind not in kinds and p.default is p.empty]
    if free:
        names = ", ".join(p.name for p in free)
        msg = (
            f"target {text!r}: takes arguments ({names}); want a function without "
            f"arguments that gives {GIVES}"
        )
        raise TargetError(msg)


def _load_module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))  # as ``python -m`` does
        return import_module(where)
    path = Path(where)
    if not path.is_file():
        msg = f"{where}: no such file; {WANTED}"
        raise TargetError(msg)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.parent.resolve()))
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def run_users(text: str, call: Callable[[], _Found]) -> _Found:
    """Return the result of a call that runs the user's code.

    Args:
        text: The target, for a message.
        call: Function without arguments.

    Raises:
        AmpError: It was raised inside.
        TargetError: Anything else was; the message has its line in the user's code.
    """
    try:
        return call()
    except AmpError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        line = raised_at(error)
        where = f" ({line[0]}:{line[1]})" if line else ""
        msg = f"target {text!r}: {type(error).__name__}: {error}{where}"
        raise TargetError(msg) from error


def _as_target(found: object, text: str) -> ModelCall:
    if not isinstance(found, tuple):
        msg = f"target {text!r}: gives a {type(found).__name__}; want {GIVES}"
        raise TargetError(msg)
    parts = cast("tuple[Any, ...]", found)
    shape: list[type[Any]] = [type(part) for part in parts]
    if shape[1:] not in ([tuple], [tuple, dict]):
        names = ", ".join(kind.__name__ for kind in shape)
        msg = f"target {text!r}: gives ({names}); want {GIVES}"
        raise TargetError(msg)
    return ModelCall(*parts)
