"""Print the way of a conversion through the code: from ``convert`` to the first cast.

    python -m tools.walk torch
    python -m tools.walk jax

The way is what a newcomer reads who follows the calls, as data: each function of the
package once, at its first call. A line is a module with the functions read there, in
order; the figure is the number of other modules from which it is entered.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import groupby
from types import CodeType, FrameType
from typing import Any, NamedTuple

PACKAGE = "amprewrite"

ENDS = {
    "torch": "frameworks.torch_fx.rewrite.write._cast_node",
    "jax": "frameworks.jaxpr.interpret.interpreter.cast",
}
"""The function of each framework that casts."""


class Call(NamedTuple):
    """The first call of a function.

    Attributes:
        caller: Module of the innermost caller in the package; empty for the user.
        module: Module of the function, without the name of the package.
        function: Qualified name of the function.
    """

    caller: str
    module: str
    function: str


def walk(run: Callable[[], Any], end: str) -> list[Call]:
    """Return the first call of each function of the package that ``run`` calls.

    A look at data in hand is no call: attributes, properties, the ``__init__`` that
    dataclasses generate. A function inside of another is read with that one. What runs
    while a module is imported is left out.

    Args:
        run: Converts a model.
        end: Module and name of the function at which the way ends.

    Raises:
        ValueError: The function at the end is not called.
    """
    calls, seen = list[Call](), set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ended = bool(calls) and f"{calls[-1].module}.{calls[-1].function}" == end
        if event != "call" or ended or code in seen or not _module(frame):
            return
        seen.add(code)
        if not _is_function(frame):
            return
        outer = list(_package_frames(frame.f_back))
        if not any(above.f_code.co_name == "<module>" for above in outer):
            caller = _module(outer[0]) if outer else ""
            calls.append(Call(caller, _module(frame), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    if not calls or f"{calls[-1].module}.{calls[-1].function}" != end:
        msg = f"{end} is not called; want a conversion that casts a value"
        raise ValueError(msg)
    return calls


def entries(calls: list[Call]) -> dict[str, list[str]]:
    """Return the modules from which each module is entered, each once.

    Args:
        calls: A way, from :func:`walk`.
    """
    found: dict[str, list[str]] = {}
    for caller, module, _ in calls:
        others = found.setdefault(module, [])
        if caller != module and caller not in others:
            others.append(caller)
    return found


def _package_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the package, outwards from ``frame``."""
    while frame is not None:
        if _module(frame):
            yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    """Return the module of a frame without the package's name; empty for others."""
    package, _, name = frame.f_globals.get("__name__", "").partition(".")
    return name if package == PACKAGE else ""


def _is_function(frame: FrameType) -> bool:
    """Return whether a frame runs a function that a reader looks up."""
    code = frame.f_code
    if "<" in code.co_qualname or code.co_filename == "<string>":
        return False  # a module, a lambda, one inside of another; a generated one
    owner: Any = None
    *holders, name = code.co_qualname.split(".")
    for holder in holders:
        owner = frame.f_globals.get(holder) if owner is None else vars(owner)[holder]
    found = None if owner is None else vars(owner).get(name)
    return not isinstance(found, (property, cached_property))


def torch_conversion() -> Callable[[], Any]:
    """Return a conversion of a small torch model."""
    import torch  # noqa: PLC0415  # only the framework that is asked for

    import amprewrite  # noqa: PLC0415

    layers = (torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model, args = torch.nn.Sequential(*layers).eval(), (torch.ones(2, 8),)
    return lambda: amprewrite.convert(model, args=args)


def jax_conversion() -> Callable[[], Any]:
    """Return a conversion of a small JAX function, and its first call."""
    import jax.numpy as jnp  # noqa: PLC0415  # only the framework that is asked for
    from jax import Array  # noqa: PLC0415

    import amprewrite  # noqa: PLC0415

    def function(params: dict[str, Array], x: Array) -> Array:
        return jnp.exp(x @ params["up"] / 2) @ params["down"]

    params = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 4))}
    args = (params, jnp.ones((2, 8)))
    return lambda: amprewrite.convert(function, args=args)(*args)


CONVERSIONS = {"torch": torch_conversion, "jax": jax_conversion}


def main(framework: str) -> None:
    """Print the way through one framework."""
    calls = walk(CONVERSIONS[framework](), ENDS[framework])
    count = entries(calls)
    for module, found in groupby(calls, key=lambda call: call.module):
        names = ", ".join(call.function for call in found)
        print(f"{len(count[module])} {module}: {names}")  # noqa: T201  # its purpose


if __name__ == "__main__":
    main(*sys.argv[1:])
