"""The model of a command, and the options that say how to plan for it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from amprewrite import api
from amprewrite.cli.options import load_plan, rules, tolerance_of
from amprewrite.factories import ModelCall
from amprewrite.ops.compounds import NAMES
from amprewrite.plan import Plan
from amprewrite.policy import PolicyLike

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


@dataclass(frozen=True)
class Asked:
    """Options by which a command plans.

    Attributes:
        policy: A policy; None for that of ``plan``, else bf16.
        placement: Name of the placement; None for the default.
        tolerance: A number or a word, as it was typed.
        override: Rules as text, tried first.
        op_full: Names of ops, separated by commas.
        keep_full: Globs over the paths of modules.
        low: Globs over the paths of modules.
        plan: File of a plan to apply instead.
    """

    policy: PolicyLike | None = None
    placement: str | None = None
    tolerance: str | None = None
    override: Iterable[str] | None = None
    op_full: Iterable[str] | None = None
    keep_full: Iterable[str] | None = None
    low: Iterable[str] | None = None
    plan: Path | None = None

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

    def inspect(self, given: ModelCall) -> Plan:
        """Return the plan for a model."""
        return self._planned(
            given,
            self.overrides(given),
            placement=self.placement,
            tolerance=tolerance_of(self.tolerance),
        )

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
