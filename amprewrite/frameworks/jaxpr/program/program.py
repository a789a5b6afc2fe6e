"""A jaxpr with its calls inlined and its values named, as reader and writer see it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from amprewrite.frameworks.jaxpr.compat.private import Eqn
from amprewrite.ir.graph import Chosen


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A scalar written in the program.

    Attributes:
        value: Its value, of the dtype it was traced with.
        dtype: Name of that dtype.
        weak: Whether it was a Python number.
    """

    value: Any
    dtype: str
    weak: bool = False


Atom = str | Number
"""What an equation reads: the name of a value, or a number."""

BoundaryKind = Literal["enter", "leave", "carry", "boundary"]
"""How a value passes into or out of a body, see :mod:`amprewrite.ir.graph`."""


@dataclass(frozen=True, slots=True)
class RegionBoundary:
    """A value that passes into or out of a body.

    Attributes:
        op: Name of the op that stands for it in the program graph.
        kind: How it passes.
        reads: What it reads; a branch reads one value from each body.
        makes: The name of the value on the other side.
        wants: The dtype in which each name in ``reads`` was read where the program was
            traced with promotion; empty if all were read as they are.
    """

    op: str
    kind: BoundaryKind
    reads: tuple[Atom, ...]
    makes: str
    wants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """One body of a step: of a loop, a branch, a checkpoint, a custom rule.

    Attributes:
        inputs: What its parameters are: a name inside, or a number.
        enters: How each input comes in; None if it is the outer value itself.
        steps: What it does.
        outputs: What it gives.
        region: Its name.
    """

    inputs: tuple[Atom, ...]
    enters: tuple[RegionBoundary | None, ...]
    steps: tuple["Step", ...]
    outputs: tuple[Atom, ...]
    region: str


@dataclass(frozen=True, slots=True)
class Step:
    """One equation.

    Attributes:
        name: Unique in the program; the op's name in the plan.
        eqn: The equation.
        operands: What it reads.
        results: The names of what it makes.
        stack: Scopes of the equation inside its body, and those of calls around it.
        scopes: Names of all scopes around it, outermost first.
        region: Body that it stands in; empty at top level.
        fence: Why it must not be touched; empty if it may.
        bodies: Its bodies, if its kind is known.
        leaves: How each result of the bodies comes out; None if it is the inner value.
        chosen: For a cast of full to full that was put back from a trace in low
            precision, how the model chose its dtype; see :class:`amprewrite.ir.Op`.
        wants: The dtype in which each name in ``operands`` was read where the program
            was traced with promotion; empty if all were read as they are.
        conjugates: Whether it makes a square of complex numbers for a norm.
    """

    name: str
    eqn: Eqn
    operands: tuple[Atom, ...]
    results: tuple[str, ...]
    stack: Any
    scopes: tuple[str, ...] = ()
    region: str = ""
    fence: str = ""
    bodies: tuple[Body, ...] = ()
    leaves: tuple[RegionBoundary | None, ...] = ()
    chosen: Chosen = ""
    wants: tuple[str, ...] = ()
    conjugates: bool = False

    @property
    def primitive(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name


@dataclass(frozen=True)
class Program:
    """A whole program.

    Attributes:
        inputs: Names of the inputs.
        constants: Arrays that the function closed over, by name.
        steps: What it does.
        outputs: What it gives.
        avals: Type of every value by name.
        called: Files of the jitted functions that were called in it.
        states: Positions of outputs, each with the name of the input that it replaces.
    """

    inputs: tuple[str, ...]
    constants: Mapping[str, Any]
    steps: tuple[Step, ...]
    outputs: tuple[Atom, ...]
    avals: dict[str, Any] = field(default_factory=dict[str, Any])
    called: frozenset[str] = frozenset()
    states: tuple[tuple[int, str], ...] = ()


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield every step at every depth, outer ones first."""
    for step in steps:
        yield step
        for body in step.bodies:
            yield from all_steps(body.steps)
