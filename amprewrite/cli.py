"""The command line: the only place that prints or exits.

What a command was asked for goes to stdout, as JSON with ``--json``; everything else
that it has to say goes to stderr. Exit 0: done; 1: verification failed; 2: a mistake in
what was asked, said in one line.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType
from typer.core import TyperGroup

from amprewrite import api
from amprewrite.errors import (
    AmpError,
    AmpWarning,
    PolicyError,
    TargetError,
    VerifyError,
)
from amprewrite.plan import Plan
from amprewrite.plan.table import decision_table
from amprewrite.policy import load_policy
from amprewrite.report import policies
from amprewrite.report.modules import modules_table
from amprewrite.targets import Target, load_target

FAILED, MISTAKE = 1, 2
"""Exit codes beside 0."""

PIPE_WIDTH = 120
"""Columns of a table that no terminal reads."""


class _Group(TyperGroup):
    """Commands whose mistakes are one line on stderr, not a traceback."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # typer's own context
        """Run the command; exit 2 on an error of this package, 1 if not verified.

        Warnings stay silent: the plans that they are about hold them too.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AmpWarning)
                return super().invoke(ctx)
        except AmpError as error:
            _fail(error)


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A compiler for precision: decides for every operation of a model in which "
    "precision it runs, places the casts, and proves the result.",
)


def main() -> None:
    """Run the command line."""
    app()


# --- what commands share -----------------------------------------------------------

TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:name or package.module:name. The name is a function without "
        "arguments that gives (model, args) or (model, args, kwargs), or such a tuple.",
    ),
]
PolicyName = Annotated[
    str,
    typer.Option("--policy", help="A shipped policy, a .toml file or a jmp string."),
]
Placement = Annotated[str, typer.Option(help="How the casts are placed.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="KEY=GLOB,...,class=CLASS",
        help="A rule tried before the policy's own, such as "
        "'path=decoder.*,class=deny'. May be given several times.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
Graph = Annotated[bool, typer.Option("--graph", help="Print the program as text.")]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="Apply this plan instead of making one.")
]


def _fail(error: AmpError) -> NoReturn:
    lines = str(error).split("\n")
    shown = (
        lines if isinstance(error, PolicyError) else [" ".join(" ".join(lines).split())]
    )
    _say("\n".join([f"amprewrite: {shown[0]}", *shown[1:]]))
    raise typer.Exit(FAILED if isinstance(error, VerifyError) else MISTAKE)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(*parts: RenderableType) -> None:
    """Print to stdout; texts as they are, tables as wide as the reader allows."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(
        width=None if wide else PIPE_WIDTH, markup=False, highlight=False, emoji=False
    )
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            console.print(part)


def _show_json(data: object) -> None:
    print(json.dumps(data, indent=1))


def _rules(texts: Iterable[str]) -> list[dict[str, object]]:
    """Return the tables that ``path=decoder.*,class=deny`` and its like say.

    Raises:
        PolicyError: A part is no ``key=value``.
    """
    tables: list[dict[str, object]] = []
    for text in texts:
        pairs = [part.partition("=") for part in text.split(",")]
        if wrong := [key for key, equals, _ in pairs if not equals]:
            msg = (
                f"--override {text!r}: {wrong[0]!r} has no '='; want "
                f"KEY=GLOB,...,class=CLASS, such as 'path=decoder.*,class=deny'"
            )
            raise PolicyError(msg)
        tables.append({key.strip(): value.strip() for key, _, value in pairs})
    return tables


def _output(path: Path | None, *suffixes: str) -> Path | None:
    """Return ``path``; refuse before any work what could not be written after it.

    Raises:
        TargetError: Its folder does not exist, or its suffix says no known kind.
    """
    if path is not None and path.suffix not in suffixes:
        msg = f"--output {path}: want a name that ends in {' or '.join(suffixes)}"
        raise TargetError(msg)
    if path is not None and not path.parent.is_dir():
        msg = f"--output {path}: there is no folder {path.parent}"
        raise TargetError(msg)
    return path


def _load_plan(path: Path | None) -> Plan | None:
    if path is None:
        return None
    if not path.is_file():
        msg = f"--plan {path}: no such file; want one written by --output"
        raise TargetError(msg)
    return Plan.load(path)


def _save_plan(plan: Plan, path: Path) -> None:
    plan.save(path)
    _say(f"wrote {path}: {len(plan.decisions)} decisions, {len(plan.casts)} casts")


def _graph_text(model: Any, target: Target) -> str:  # noqa: ANN401  # any model
    from amprewrite.frameworks.torch_fx.program import graph_text

    return graph_text(model, target.args, target.kwargs)


# --- commands ----------------------------------------------------------------------


@app.command()
def demo(*, as_json: AsJson = False) -> None:
    """Convert, verify and time a real pretrained sentence encoder."""
    from amprewrite.demo.run import run
    from amprewrite.demo.show import show

    start = time.perf_counter()
    figures = run(lambda text: _say(f"{time.perf_counter() - start:5.1f} s  {text}"))
    _say(f"{time.perf_counter() - start:5.1f} s  done\n")
    if as_json:
        _show_json(figures.to_json())
    else:
        _show(*show(figures))


@app.command()
def inspect(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PolicyName = "bf16",
    placement: Placement = "promote",
    override: Overrides = None,
    *,
    explain: Annotated[
        str | None, typer.Option(metavar="OP", help="Say why one op runs as it does.")
    ] = None,
    ops: Annotated[bool, typer.Option("--ops", help="Show every decision.")] = False,
    graph: Graph = False,
    output: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Write the plan.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the plan for a model: what would be lowered, which casts; change nothing.

    With --graph, the program as it is before conversion.
    """
    written = _output(output, ".json")
    given = load_target(target)
    plan = api.inspect(
        given.model,
        policy,
        args=given.args,
        kwargs=given.kwargs,
        placement=placement,
        overrides=_rules(override or ()),
    )
    if written is not None:
        _save_plan(plan, written)
    if as_json:
        _show_json(plan.to_json())
    elif explain is not None:
        _show(plan.explain(explain))
    elif graph:
        _show(_graph_text(given.model, given))
    else:
        _show(plan.summary(), modules_table(plan))
        _show(*([decision_table(plan)] if ops else []))


@app.command()
def convert(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PolicyName = "bf16",
    placement: Placement = "promote",
    override: Overrides = None,
    plan: PlanFile = None,
    *,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PLAN.json|MODEL.pt2",
            help="Write the plan, or the converted model for torch.export.load. May be "
            "given twice.",
        ),
    ] = None,
    graph: Graph = False,
    as_json: AsJson = False,
) -> None:
    """Convert a model, and write its plan or the converted program.

    With --graph, the program as it is after conversion.
    """
    written = [path for path in output or () if _output(path, ".json", ".pt2")]
    given = load_target(target)
    converted = _convert(given, policy, placement, override, plan)
    for path in written:
        if path.suffix == ".json":
            _save_plan(converted.plan, path)
        else:
            from amprewrite.frameworks.torch_fx.program import save_program

            save_program(converted, given.args, given.kwargs, path)
            _say(f"wrote {path}: the converted model; torch.export.load reads it")
    if as_json:
        _show_json(converted.plan.to_json())
    else:
        _show(_graph_text(converted, given) if graph else converted.plan.summary())


def _convert(
    given: Target,
    policy: str,
    placement: str,
    override: list[str] | None,
    plan: Path | None,
) -> Any:  # noqa: ANN401  # the same kind as the model
    return api.convert(
        given.model,
        policy,
        args=given.args,
        kwargs=given.kwargs,
        placement=placement,
        overrides=_rules(override or ()),
        plan=_load_plan(plan),
    )


@app.command()
def verify(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PolicyName = "bf16",
    placement: Placement = "promote",
    override: Overrides = None,
    plan: PlanFile = None,
    *,
    reference: Annotated[
        str,
        typer.Option(metavar="DTYPE", help="Dtype in which the model is the truth."),
    ] = "float64",
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Compare gradients too.")
    ] = False,
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Greatest relative error of an output; beyond it exit 1. Without it, "
            "what is to be expected of the formats and the depth of the program."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a model, and compare the result with the model in full precision."""
    given = load_target(target)
    converted = _convert(given, policy, placement, override, plan)
    report = api.verify(
        given.model,
        converted,
        given.args,
        given.kwargs,
        reference=reference,
        gradients=gradients,
    )
    if rtol is not None:
        report = replace(report, bound=rtol)
    if as_json:
        _show_json(report.to_json())
    else:
        _show(report)
    for worst in report.violations[:1]:
        wanted = "" if report.bound is None else f"; want at most {report.bound:.3g}"
        _say(
            f"amprewrite: verification failed: output {worst.name}: error "
            f"{worst.relative_l2:.3g}, {worst.nonfinite_new} new non-finite elements"
            f"{wanted}"
        )
        raise typer.Exit(FAILED)


@app.command()
def policy(
    name: Annotated[
        str | None,
        typer.Argument(help="A shipped policy, a .toml file or a jmp string."),
    ] = None,
    *,
    diff: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare with another policy.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Say every mistake in a policy file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the policies, or show one: the class of every op, and why."""
    if check is not None:
        found = load_policy(check.resolve())
        _say(f"{check}: no mistakes; {len(found.ops)} ops, {len(found.rules)} rules")
        return
    if name is None and diff is not None:
        msg = f"--diff {diff}: compared with what? want policy NAME --diff OTHER"
        raise TargetError(msg)
    if name is None:
        if as_json:
            _show_json(policies.descriptions())
        else:
            _show(policies.names_table())
        return
    one = load_policy(name)
    if diff is not None:
        lines = list(policies.policy_diff(one, load_policy(diff)))
        _show_json(lines) if as_json else _show(*(lines or ["no difference"]))
    elif as_json:
        _show_json(policies.policy_json(one))
    else:
        _show(policies.policy_table(one))
