"""Calls of named functions around equations, such as ``jax.nn.softmax``, numbered.

JAX inlines most of its own functions while it traces; their names are then in the
tracebacks of the equations alone.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from amprewrite.frameworks.jaxpr.compat.equations import Eqn
from amprewrite.frameworks.jaxpr.compat.name_stacks import transformations
from amprewrite.frameworks.jaxpr.compat.tracebacks import Frames, named_frames
from amprewrite.ops.compounds import function_compound

BACKWARD = "backward of "
"""Prefix of calls of which an equation is transposed."""


@dataclass
class _Call:
    """A call that equations belong to.

    Attributes:
        name: Its compound and number.
        first: Traceback of its first equation.
        last: Traceback of its last equation so far.
    """

    name: str
    first: Any
    last: Any


class CallNumbers:
    """Numbers of the calls in a program.

    Equations belong to one call if the frames around it are the same. In a Python loop
    they are the same for each iteration: one begins where the first equation of the
    call comes again.
    """

    def __init__(self) -> None:
        """Begin without calls."""
        self._calls: dict[tuple[str, int, Frames], _Call] = {}
        self._counts: Counter[str] = Counter()

    def around(
        self, eqn: Eqn, stack: Any, outer: tuple[str, ...], inlined: int
    ) -> tuple[str, ...]:
        """Return the calls around an equation, outermost first.

        Args:
            eqn: The equation.
            stack: Name stack of the jitted calls around it; None without any.
            outer: Calls around the jitted call that it is in.
            inlined: Number of that jitted call.
        """
        traceback = eqn.source_info.traceback
        found = named_frames(traceback)
        if not found:
            return outer
        stacks = (eqn.source_info.name_stack, stack)
        derived = any("transpose" in transformations(s) for s in stacks if s)
        prefix = BACKWARD if derived else ""
        names: list[str] = []
        for compound, above in found:
            if not above and outer and outer[-1].startswith(f"{compound}#"):
                continue  # the jitted function itself
            key = prefix + compound, inlined, above
            names.append(self._numbered(key, traceback, restarts=not derived))
        return (*outer, *names)

    def entered(self, eqn: Eqn, calls: tuple[str, ...]) -> tuple[str, ...]:
        """Return the calls around the body of a jitted call.

        Args:
            eqn: The call.
            calls: Calls around it, as :meth:`around` returns them.
        """
        compound = function_compound(str(eqn.params.get("name", "")))
        if not compound or (calls and calls[-1].startswith(f"{compound}#")):
            return calls
        return (*calls, self._next(compound))

    def _numbered(
        self, key: tuple[str, int, Frames], traceback: Any, *, restarts: bool
    ) -> str:
        call = self._calls.get(key)
        again = call is not None and traceback == call.first != call.last
        if call is None or (again and restarts):
            call = self._calls[key] = _Call(self._next(key[0]), traceback, traceback)
        call.last = traceback
        return call.name

    def _next(self, compound: str) -> str:
        self._counts[compound] += 1
        return f"{compound}#{self._counts[compound]}"
