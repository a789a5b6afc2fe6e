"""Conditions on the extents of the inputs under which a captured program is valid.

A model may branch on an extent that varies; the program has one branch. torch.export
records the condition, as code that ``ExportedProgram.module`` puts in a submodule.
"""
# pyright: reportPrivateUsage=false

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from torch.fx import GraphModule
from torch.fx.experimental import symbolic_shapes

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import threads
from amprewrite.frameworks.torch_fx.compat.pytrees import keystr

GUARDS = "_guards_fn"
"""Name of the submodule with the conditions, and of the node that calls it."""

META = "amprewrite_guards"
"""Key in the meta of a graph module: its conditions."""


_symbolic: Any = symbolic_shapes
_NAMES: dict[str, Any] = {**_symbolic.SYMPY_INTERP, "math": math, "inf": float("inf")}
"""Names in the code of conditions, as torch/export/_unlift.py defines them (2.13)."""


@dataclass(frozen=True)
class Guards:
    """Conditions on the inputs of a program.

    Attributes:
        texts: Expressions of ``args``, the flat inputs, that have to be true.
        function: Function of the flat inputs that raises AssertionError; None with
            ``texts``.
    """

    texts: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    _checks: Callable[[Sequence[Any]], int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the expressions."""
        object.__setattr__(self, "_checks", _compiled(self.texts))

    def broken(self, leaves: Sequence[Any]) -> str:
        """Return the first condition that does not hold; empty if all do.

        Args:
            leaves: Flat inputs of a call.
        """
        first = self._checks(leaves)
        if first >= 0:
            return self.texts[first]
        if self.function is not None:
            try:
                self.function(*leaves)
            except AssertionError as error:
                return str(error).removeprefix("Guard failed: ")
        return ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle.

        Raises:
            UnsupportedError: The conditions are known as a function alone.
        """
        if self.function is not None:
            msg = (
                "a program that was given as a graph module with conditions on its "
                "extents cannot be pickled; convert the exported program instead"
            )
            raise UnsupportedError(msg)
        return {"texts": self.texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the conditions, which are compiled again."""
        object.__setattr__(self, "texts", state["texts"])
        object.__setattr__(self, "function", None)
        self.__post_init__()


@lru_cache(maxsize=1024)
def _compiled(texts: tuple[str, ...]) -> Callable[[Sequence[Any]], int]:
    """Return a function from flat inputs to the first condition that does not hold.

    It returns -1 if all hold. Dynamo traces it, as it does torch's own.
    """
    lines = [f"  if not ({text}): return {n}\n" for n, text in enumerate(texts)]
    found: dict[str, Any] = {}
    exec(f"def checks(args):\n{''.join(lines)}  return -1\n", {**_NAMES}, found)  # noqa: S102  # torch's code
    if not texts:
        return found["checks"]
    dynamo: Any = import_module("torch._dynamo")
    return dynamo.dont_skip_tracing(found["checks"])


class Texts(list[str]):
    """Texts of conditions.

    Attributes:
        heard: Whether torch called the function that hears of them.
    """

    heard = False


@contextmanager
def recorded() -> Generator[Texts]:
    """Record the conditions of the program that is opened in the context.

    Those on the tensor that an example is a view of are left out: the program takes the
    view as it is, and other calls may give a tensor that is none.
    """
    unlift: Any = import_module("torch.export._unlift")
    name, texts = "_convert_guards_code_to_fn", Texts()
    before = getattr(unlift, name, None)
    if before is None:
        yield texts
        return

    def record(guards: Sequence[str], paths: Sequence[Any]) -> Any:
        texts.heard = True
        for guard in guards:
            if "._base" in guard:
                continue
            text = guard
            for number, path in enumerate(paths):
                text = text.replace(f"L{keystr(path)}", f"args[{number}]")
            texts.append(text.replace("\n", ""))
        return before(guards, paths)

    with threads.replaced(unlift, name, record):
        yield texts


def take_out(module: GraphModule) -> Callable[..., Any] | None:
    """Remove the conditions from a graph module; return them as a function."""
    function: Any = getattr(module, GUARDS, None)
    nodes = module.graph.find_nodes(op="call_module", target=GUARDS)
    for node in list(nodes):
        module.graph.erase_node(node)
    if function is not None:
        delattr(module, GUARDS)
    return function


def keep(module: GraphModule, guards: Guards) -> None:
    """Store the conditions of a program with its graph module."""
    module.meta[META] = guards


def kept(module: GraphModule) -> Guards:
    """Return the conditions that are stored with a graph module."""
    return module.meta.get(META, Guards())
