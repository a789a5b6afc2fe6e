"""The model of a command, and the options that say how to plan for it."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from amprewrite import api
from amprewrite.cli.options import (
    Overrides,
    Placement,
    PlanFile,
    PolicyName,
    ToleranceText,
    load_plan,
    rules,
    tolerance_of,
)
from amprewrite.factories import ModelCall
from amprewrite.ops.compounds import NAMES
from amprewrite.plan import Plan

KeepFull = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-full",
        metavar="GLOB",
        help="Modules that stay in full precision, by path: decoder.*. May be given "
        "several times.",
    ),
]
Low = Annotated[
    list[str] | None,
    typer.Option(
        "--low",
        metavar="GLOB",
        help="Modules that may run in low precision, by path, after --keep-full. May "
        "be given several times.",
    ),
]
OpFull = Annotated[
    list[str] | None,
    typer.Option(
        "--op-full",
        metavar="OP,...",
        help="Ops, or compounds of several ops such as a softmax in JAX, that stay in "
        "full precision: softmax,gelu.",
    ),
]


def planned(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of its parameter ``asked`` in its place.

    Args:
        command: Function with a parameter ``asked``: :class:`Ruled` or a class derived
            from it, whose fields become options.
    """
    own = inspect.signature(command).parameters
    kind: type[Ruled] = own["asked"].annotation
    options = inspect.signature(kind).parameters
    flat = [
        part.replace(kind=Parameter.KEYWORD_ONLY)
        for name, one in own.items()
        for part in (options.values() if name == "asked" else (one,))
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        command(asked=kind(**{name: given.pop(name) for name in options}), **given)

    untyped: Any = run
    untyped.__signature__ = Signature(flat)
    untyped.__annotations__ = {part.name: part.annotation for part in flat}
    return run


@dataclass(frozen=True, kw_only=True)
class Ruled:
    """Options of every command that plans: the policy, and rules before it."""

    policy: PolicyName = None
    override: Overrides = None
    keep_full: KeepFull = None
    low: Low = None
    op_full: OpFull = None

    def overrides(self, given: ModelCall) -> list[Mapping[str, object]]:
        """Return the rules of all options: those that keep ops full come first.

        Raises:
            PolicyError: A rule of ``--override`` is none.
        """
        names = [n.strip() for text in self.op_full or () for n in text.split(",")]
        return [
            *rules(self.override or ()),
            *self._full(given, [name for name in names if name]),
            *({"path": glob, "class": "deny"} for glob in self.keep_full or ()),
            *({"path": glob, "class": "allow"} for glob in self.low or ()),
        ]

    def _full(
        self, given: ModelCall, names: Sequence[str]
    ) -> Iterator[Mapping[str, object]]:
        """Yield rules that keep ops full, and the ops of compounds of these names.

        A softmax in JAX is no op, but a compound of several: they are found in a plan.
        """
        compounds = NAMES.intersection(names)
        plan = self._planned(given, ()) if compounds else None
        for name in names:
            found = plan.select(compound=name) if plan and name in compounds else ()
            if not found or any(decision.canonical == name for decision in found):
                yield {"op": name, "class": "deny"}
            parts = (d for d in found if d.canonical != name)
            yield from ({"op_name": part.op, "class": "deny"} for part in parts)

    def _planned(
        self,
        given: ModelCall,
        overrides: Sequence[Mapping[str, object]],
        **options: Any,
    ) -> Plan:
        return api.inspect(
            given.model,
            self.policy or "bf16",
            args=given.args,
            kwargs=given.kwargs,
            overrides=overrides,
            **options,
        )


@dataclass(frozen=True, kw_only=True)
class Asked(Ruled):
    """Options of the commands that make one plan."""

    placement: Placement = None
    tolerance: ToleranceText = None

    def inspect(self, given: ModelCall) -> Plan:
        """Return the plan for a model."""
        return self._planned(
            given,
            self.overrides(given),
            placement=self.placement,
            tolerance=tolerance_of(self.tolerance),
        )


@dataclass(frozen=True, kw_only=True)
class Applied(Asked):
    """Options of the commands that convert a model: by a new plan, or a saved one."""

    plan: PlanFile = None

    def convert(self, given: ModelCall) -> Any:  # noqa: ANN401  # the same kind as the model
        """Return a model converted."""
        return api.convert(
            given.model,
            self.policy,
            args=given.args,
            kwargs=given.kwargs,
            placement=self.placement,
            tolerance=tolerance_of(self.tolerance),
            overrides=self.overrides(given),
            plan=load_plan(self.plan),
        )
