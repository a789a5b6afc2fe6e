"""Programs: jaxprs with inlined calls and named values, for readers and writers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from amprewrite.frameworks.jaxpr.compat.equations import Eqn
from amprewrite.ir.graph import Chosen
from amprewrite.runtime.fast_init import fast_init


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A scalar literal of the program.

    Attributes:
        value: Its value, of the dtype it was traced with.
        dtype: Name of that dtype.
        weak: Whether its type is weak, as of a Python number.
    """

    value: Any
    dtype: str
    weak: bool = False


Atom = str | Number
"""Operand of an equation: the name of a value, or a number."""

BoundaryKind = Literal["enter", "leave", "carry", "boundary"]
"""Kind of passage into or out of a body, see :mod:`amprewrite.ir.graph`."""


@fast_init
@dataclass(frozen=True, slots=True)
class RegionBoundary:
    """A value that passes into or out of a body.

    Attributes:
        op: Name of its op in the program graph.
        kind: Kind of the passage.
        reads: Its sources; a branch has one in each body.
        makes: Name of the value on the other side.
        wants: Dtype in which each name in ``reads`` is read, in a program traced with
            promotion; empty if all are read as they are.
    """

    op: str
    kind: BoundaryKind
    reads: tuple[Atom, ...]
    makes: str
    wants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """One body of a step: of a loop, a branch, a checkpoint or a custom rule.

    Attributes:
        inputs: Its parameters: names inside, or numbers.
        enters: Boundary of each input; None if it is the outer value itself.
        steps: Its steps.
        outputs: Its outputs.
        region: Its name as a region.
    """

    inputs: tuple[Atom, ...]
    enters: tuple[RegionBoundary | None, ...]
    steps: tuple["Step", ...]
    outputs: tuple[Atom, ...]
    region: str


@fast_init
@dataclass(frozen=True, slots=True)
class Step:
    """One equation of the program, with its place and bodies.

    Attributes:
        name: Unique in the program; the op's name in the plan.
        eqn: The equation.
        operands: Its operands.
        results: Names of its results.
        stack: Scopes of the equation inside its body, and those of calls around it.
        scopes: Names of all scopes around it, outermost first.
        region: Body that contains it; empty at top level.
        fence: Reason why it must not be changed; empty if it may.
        bodies: Its bodies, if its primitive is known.
        leaves: Boundary of each result of the bodies; None if it is the inner value.
        chosen: For a user cast of full to full restored from a low trace, the way in
            which the model chose its dtype; see :class:`amprewrite.ir.Op`.
        wants: Dtype in which each name in ``operands`` is read, in a program traced
            with promotion; empty if all are read as they are.
        conjugates: Whether it squares complex numbers for a norm.
        calls: Calls of named functions around it, see :class:`amprewrite.ir.Op`.
        called_at: ``file:line`` of the user's call of the jitted function that it is
            in; empty outside of one.
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
    calls: tuple[str, ...] = ()
    called_at: str = ""

    @property
    def primitive(self) -> str:
        """Name of the primitive."""
        return self.eqn.primitive.name


@dataclass(frozen=True)
class Program:
    """A whole program: inputs, constants, steps and outputs.

    Attributes:
        inputs: Names of the inputs.
        constants: Arrays that the function closed over, by name.
        steps: Its steps at top level.
        outputs: Its outputs.
        avals: Type of every value by name.
        states: Positions of outputs, each with the name of the input that it replaces.
    """

    inputs: tuple[str, ...]
    constants: Mapping[str, Any]
    steps: tuple[Step, ...]
    outputs: tuple[Atom, ...]
    avals: dict[str, Any] = field(default_factory=dict[str, Any])
    states: tuple[tuple[int, str], ...] = ()


def names_of(atoms: Iterable[Atom]) -> tuple[str, ...]:
    """Return the names among atoms, in order, without the numbers."""
    return tuple([atom for atom in atoms if isinstance(atom, str)])


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield every step at every depth, outer ones first."""
    for step in steps:
        yield step
        for body in step.bodies:
            yield from all_steps(body.steps)
