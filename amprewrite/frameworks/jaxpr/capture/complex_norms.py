"""Find norms of complex vectors written as sqrt(sum(x * x)), to mean |x|^2.

``x * rsqrt(sum(x * x))`` makes a vector of length one if x is real. For complex x the
sum of ``x * x`` is no squared length: it may be zero or have any phase, and ``[1, i]``
becomes infinite. Libraries write it all the same (``_l2_normalize`` of Flax, used by
WeightNorm and SpectralNorm). FLIP 1777 asks for the conjugate.

The rule is narrow, because a sum of squares of complex numbers may be meant, such as a
complex distance: a square is replaced only if all its users sum it, take a root of the
sum, and scale that same x by the root. A root of such a sum that scales another value
is left alone and named in a warning; so is one that was differentiated before
conversion, since its derivative would no longer match. ``x @ x`` is never touched.

The squares are real, and keep their traced dtype with an imaginary part of zero: the
ops that use them are unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from amprewrite.frameworks.jaxpr.compat import equations
from amprewrite.frameworks.jaxpr.program.program import (
    Body,
    Program,
    Step,
    all_steps,
    dtype_name,
)

MOVES = frozenset(
    ("broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape")
) | {"reduce_precision", "squeeze", "stop_gradient", "transpose"}
"""Primitives that only move or round values."""

SCALES = frozenset(("add", "div", "mul"))
"""Primitives that turn a sum into a mean, or add an epsilon."""

ROOTS = frozenset(("rsqrt", "sqrt"))

DERIVED = frozenset(("jvp", "transpose"))
"""Names of differentiating transformations in a name stack."""

RULES = frozenset(("custom_jvp_call", "custom_vjp_call"))
"""Primitives with a derivative rule of their own, which would no longer match."""


@dataclass(frozen=True)
class ComplexNorms:
    """The squares of complex numbers that are part of a root of a sum.

    Attributes:
        scaling: Squares to replace: the root scales the squared value.
        others: Squares that are left alone, each with the reason.
    """

    scaling: frozenset[str]
    others: tuple[tuple[Step, str], ...]

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each square that is left alone."""
        for step, why in self.others:
            place = equations.source_line(step.eqn.source_info.traceback)
            head = f"{place}: " if place else ""
            yield (
                f"{head}{step.name}: the root of a sum of x*x of complex numbers is no "
                f"norm, and it is left as it is, because {why}; if a norm is meant, "
                f"write x * jnp.conj(x)"
            )


def find_complex_norms(program: Program) -> ComplexNorms:
    """Return the squares of complex numbers that are part of a norm."""
    return _Finder(program).find()


def conjugated(program: Program, norms: ComplexNorms) -> Program:
    """Return ``program`` with the squares of norms marked."""
    if not norms.scaling:
        return program
    return replace(program, steps=_marked(program.steps, norms.scaling))


def _marked(steps: tuple[Step, ...], names: frozenset[str]) -> tuple[Step, ...]:
    def body(inner: Body) -> Body:
        return replace(inner, steps=_marked(inner.steps, names))

    return tuple(
        replace(
            step,
            conjugates=step.name in names,
            bodies=tuple(map(body, step.bodies)),
        )
        for step in steps
    )


class _Finder:
    def __init__(self, program: Program) -> None:
        self.steps = list(all_steps(program.steps))
        self.avals = program.avals
        self.users: dict[str, list[Step]] = {}
        self.makers: dict[str, Step] = {}
        for step in self.steps:
            self.makers.update(dict.fromkeys(step.results, step))
            if step.bodies and all(e is None for b in step.bodies for e in b.enters):
                continue  # its steps read the outer values themselves
            for name in {a for a in step.operands if isinstance(a, str)}:
                self.users.setdefault(name, []).append(step)
        self.handed = {a for a in program.outputs if isinstance(a, str)}
        rules = (step for step in self.steps if step.primitive in RULES)
        self.ruled = {inner.name for step in rules for inner in all_steps((step,))}

    def find(self) -> ComplexNorms:
        scaling: set[str] = set()
        others: list[tuple[Step, str]] = []
        for step in self.steps:
            squared = self._squared(step)
            if not squared:
                continue
            roots = list(self._roots(step.results[0], summed=False))
            if not any(roots):
                continue
            if why := self._why_not(step, squared, roots):
                others.append((step, why))
            else:
                scaling.add(step.name)
        return ComplexNorms(frozenset(scaling), tuple(others))

    def _squared(self, step: Step) -> str:
        """Return the complex value that a step squares; empty for other steps."""
        once = set(step.operands)
        is_square = (
            step.primitive == "square"
            or (step.primitive == "mul" and len(once) == 1)
            or (step.primitive == "integer_pow" and step.eqn.params["y"] == 2)  # noqa: PLR2004  # a square
        )
        name = next(iter(once)) if is_square else ""
        if not isinstance(name, str) or not name:
            return ""
        return name if dtype_name(self.avals[name]).startswith("complex") else ""

    def _roots(self, name: str, *, summed: bool) -> Iterator[Step | None]:
        """Yield the roots of sums of a value; None for every other use of it."""
        if name in self.handed:
            yield None
        for step in self.users.get(name, ()):
            if step.primitive in MOVES or (summed and self._scales(step, name)):
                yield from self._roots(step.results[0], summed=summed)
            elif step.primitive == "reduce_sum":
                yield from self._roots(step.results[0], summed=True)
            elif summed and step.primitive in ROOTS:
                yield step
            else:
                yield None

    def _scales(self, step: Step, name: str) -> bool:
        """Return whether a step adds a number to a value, or multiplies it by one."""
        if step.primitive not in SCALES:
            return False
        first, second = step.operands
        other = second if first == name else first
        divides = step.primitive == "div" and first != name
        filled = not isinstance(other, str) or self._is_filled(other)
        return filled and not divides

    def _is_filled(self, name: str) -> bool:
        """Return whether a value is made of numbers alone."""
        maker = self.makers.get(name)
        return maker is not None and not any(
            isinstance(a, str) and not self._is_filled(a) for a in maker.operands
        )

    def _why_not(self, step: Step, squared: str, roots: list[Step | None]) -> str:
        if not DERIVED.isdisjoint(equations.transformations(step.stack)):
            return "it was differentiated before it was converted"
        if step.name in self.ruled:
            return "it is in a function with a derivative rule of its own"
        found = [root for root in roots if root is not None]
        if len(found) < len(roots):
            return "other ops read the squares or their sum too"
        if not all(self._is_scaled(squared, root) for root in found):
            return "the root does not scale the squared value"
        return ""

    def _is_scaled(self, squared: str, root: Step) -> bool:
        """Return whether a root, possibly moved, scales the value that was squared."""
        return any(
            self._moved_from(operand) == self._moved_from(squared)
            for scaled in self._products(root.results[0])
            for operand in scaled.operands
            if isinstance(operand, str)
        )

    def _products(self, name: str) -> Iterator[Step]:
        """Yield the products and quotients with a value as a factor."""
        for step in self.users.get(name, ()):
            if step.primitive in ("div", "mul"):
                yield step
            if step.primitive in MOVES or self._scales(step, name):
                yield from self._products(step.results[0])

    def _moved_from(self, name: str) -> str:
        """Return the value that ``name`` is a reshaped or moved copy of."""
        maker = self.makers.get(name)
        while maker and maker.primitive in MOVES and isinstance(maker.operands[0], str):
            name = maker.operands[0]
            maker = self.makers.get(name)
        return name
