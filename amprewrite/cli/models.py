"""The commands on a model, and the options that they share."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from amprewrite import api
from amprewrite.cli.group import FAILED, app
from amprewrite.cli.options import (
    AsJson,
    Graph,
    Html,
    Overrides,
    Placement,
    PlanFile,
    PolicyName,
    RunBy,
    TargetName,
    ToleranceText,
    html_page,
    load_plan,
    rules,
    save_plan,
    tolerance_of,
    writable,
)
from amprewrite.cli.progress import Silent, Work, progress
from amprewrite.cli.show import answer, say, show, show_json
from amprewrite.errors import AmpWarning, ArgumentError, VerifyError
from amprewrite.factories import ModelCall, load_factory, run_users
from amprewrite.ops.compounds import NAMES
from amprewrite.plan import Plan
from amprewrite.plan.bounds import check_rtol
from amprewrite.plan.table import decision_table
from amprewrite.policy import load_policy
from amprewrite.probes import histogram as count
from amprewrite.report.modules import modules_table
from amprewrite.report.pareto import (
    SUFFIXES,
    load_matplotlib,
    pareto_json,
    pareto_table,
    plot_pareto,
)

# The model of a command, and the options that say how to plan for it.

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
    own = signature(command).parameters
    kind: type[Ruled] = own["asked"].annotation
    options = signature(kind).parameters
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


def _loaded(target: str, work: Work | Silent) -> ModelCall:
    """Return the model of a command with its arguments: the first step."""
    work.step("load the model")
    return load_factory(target)


# The command that finds the ops which cause an error, and rules that help: blame.


@app.command()
@planned
def blame(  # noqa: PLR0913  # options
    target: TargetName,
    asked: Applied,
    *,
    top: Annotated[int, typer.Option(metavar="N", help="How many ops to name.")] = 5,
    fix: Annotated[
        float | None,
        typer.Option(
            metavar="ERROR",
            help="Find the fewest ops that reach this relative error when they are "
            "kept in full precision.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="POLICY.toml", help="Write the policy of --fix."),
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Find the ops that cause the error of a converted model.

    They are restored to full precision, one by one or in groups, and the error that is
    left is measured.
    """
    if output is not None and fix is None:
        msg = f"--output {output}: is the policy of --fix; give --fix ERROR, too"
        raise ArgumentError(msg)
    written, page = writable(output, ".toml"), html_page(html)
    with progress(4 if fix is not None else 3) as work:
        given = _loaded(target, work)
        work.step("convert")
        converted = asked.convert(given)
        work.step("verify, and restore ops")
        report = api.verify(given.model, converted, given.args, given.kwargs)
        if not report.compared:
            raise VerifyError(report.problems[0], report)
        found = report.blame(top)
        if fix is not None:
            work.step("search for rules")
        fixed = None if fix is None else report.fix(fix)
    if written is not None and fixed is not None:
        fixed.save(written)
        say(f"wrote {written}: a policy that keeps {len(fixed.ops)} ops full")
    if page is not None:
        report.to_html(page, blame=found)
        say(f"wrote {page}: the report, with the ops that cause the error")
    if as_json:
        rules = None if fixed is None else [dict(rule) for rule in fixed.overrides]
        left = None if fixed is None else fixed.error
        show_json({**found.to_json(), "fix": rules, "fixed_error": left})
    else:
        show(str(found), *([] if fixed is None else [str(fixed)]))


# The commands that convert a model: convert, verify.


@app.command()
@planned
def convert(
    target: TargetName,
    asked: Applied,
    *,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "--out",
            metavar="PLAN.json|MODEL.pt2|MODEL.onnx|MODEL.stablehlo",
            help="Write the plan, or the converted model: for torch.export.load, as "
            "ONNX, or for jax.export.deserialize. May be given several times.",
        ),
    ] = None,
    graph: Graph = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Convert a model, and write its plan or the converted program.

    With --graph, the program as it is after conversion.
    """
    kinds = (".json", ".pt2", ".onnx", ".stablehlo")
    written = [path for path in output or () if writable(path, *kinds)]
    page = html_page(html)
    with progress(2 + len(written)) as work:
        given = _loaded(target, work)
        readers = api.program_files(given.model)
        for path in written:  # before any work: a file of the other framework
            writable(path, ".json", *readers)
        work.step("convert")
        converted = asked.convert(given)
        for path in written:
            work.step(f"write {path.name}")
            if path.suffix == ".json":
                save_plan(converted.plan, path)
            else:
                _save(converted, given, path)
                reader = readers[path.suffix]
                say(f"wrote {path}: the converted model; {reader} reads it")
    if page is not None:
        converted.plan.to_html(page)
        say(f"wrote {page}: the plan")
    if as_json:
        show_json(converted.plan.to_json())
    elif graph:
        show(api.graph_text(converted, given.args, given.kwargs))
    else:
        show(converted.plan.summary())


def _save(converted: Any, given: ModelCall, path: Path) -> None:  # noqa: ANN401  # any model
    """Write a converted model, and print the warnings about its file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AmpWarning)
        api.save_program(converted, given.args, given.kwargs, path)
    for warning in caught:
        if issubclass(warning.category, AmpWarning):
            say(f"amprewrite: warning: {warning.message}")


@app.command()
@planned
def verify(  # noqa: PLR0913  # options
    target: TargetName,
    asked: Applied,
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
            "the tolerance of the plan, or the error that its roundings explain."
        ),
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Convert a model, and compare the result with the model in full precision."""
    page = html_page(html)
    check_rtol(rtol)
    with progress(3) as work:
        given = _loaded(target, work)
        work.step("convert")
        converted = asked.convert(given)
        work.step("verify")
        report = api.verify(
            given.model,
            converted,
            given.args,
            given.kwargs,
            reference=reference,
            gradients=gradients,
        )
    if rtol is not None:
        report = replace(report, bound=rtol, together=False, bounds={})
    if page is not None:
        report.to_html(page)
        say(f"wrote {page}: the report and the plan")
    answer(report.to_json, report, as_json=as_json)
    for problem in report.problems[:1]:
        say(f"amprewrite: verification failed: {problem}")
        raise typer.Exit(FAILED)


# The command for the Pareto front of a model: relative error against bytes moved.


@app.command()
@planned
def pareto(
    target: TargetName,
    asked: Ruled,
    *,
    points: Annotated[int, typer.Option(help="How many errors are aimed at.")] = 8,
    runs: RunBy = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PLOT.svg|.png|.pdf", help="Draw error against bytes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the cheapest plans of a model for a range of errors: the Pareto front.

    Each has its certificate: the bytes that no plan with a smaller error undercuts.
    """
    written = writable(output, *SUFFIXES)
    if written is not None:
        load_matplotlib()
    with progress(2) as work:
        given = _loaded(target, work)
        work.step("plan and measure")
        found = api.pareto(
            given.model,
            asked.policy or "bf16",
            args=given.args,
            kwargs=given.kwargs,
            points=points,
            overrides=asked.overrides(given),
            target=runs,
        )
    if written is not None:
        plot_pareto(found, written)
        say(f"wrote {written}: error against bytes of {len(found)} plans")
    answer(lambda: pareto_json(found), pareto_table(found), as_json=as_json)


# The commands that plan and convert nothing: inspect, explain.


@app.command()
@planned
def inspect(  # noqa: PLR0913  # options
    target: TargetName,
    asked: Asked,
    *,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="OP", help="Say why an op, a module or a compound runs as it does."
        ),
    ] = None,
    modules: Annotated[
        bool,
        typer.Option(
            "--modules",
            help="Show the modules inside of repeated blocks, which share a row "
            "otherwise.",
        ),
    ] = False,
    ops: Annotated[bool, typer.Option("--ops", help="Show every decision.")] = False,
    graph: Graph = False,
    output: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Write the plan.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Show the plan for a model, its precisions and casts, without converting it.

    With --graph, the program as it is before conversion.
    """
    written, page = writable(output, ".json"), html_page(html)
    with progress(2) as work:
        given = _loaded(target, work)
        work.step("plan")
        plan = asked.inspect(given)
    if written is not None:
        save_plan(plan, written)
    if page is not None:
        plan.to_html(page)
        say(f"wrote {page}: the plan")
    if as_json:
        show_json(plan.to_json())
    elif explain is not None:
        show(plan.explain(explain))
    elif graph:
        show(api.graph_text(given.model, given.args, given.kwargs))
    else:
        show(plan.summary(), modules_table(plan, by_layer=not modules))
        show(*([decision_table(plan)] if ops else []))


@app.command()
@planned
def explain(
    target: TargetName,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An op of the plan, a module path, or a compound such as softmax.",
        ),
    ],
    asked: Asked,
    *,
    as_json: AsJson = False,
) -> None:
    """Say why an op, a module or a compound runs in the precision that it does."""
    with progress(2) as work:
        given = _loaded(target, work)
        work.step("plan")
        text = asked.inspect(given).explain(name)
    data = {"ok": True, "name": name, "lines": text.split("\n")}
    answer(lambda: data, text, as_json=as_json)


# The command that counts exponents of a model's numbers: histogram.


@app.command()
def histogram(  # options
    target: TargetName,
    policy: PolicyName = None,
    *,
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients/--no-gradients", help="Whether to run the model backward too."
        ),
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json|PLOT.svg|.png|.pdf",
            help="Write the counts, or draw them with the ranges of the formats.",
        ),
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Count the exponents of weights, activations and gradients in one run.

    It shows the shares that each format loses, and the loss scale that the gradients
    suggest. --policy is that of the plan on the page of --html.
    """
    written = writable(output, ".json", *SUFFIXES)
    page = html_page(html)
    load_policy(policy or "bf16")  # a mistake in it is named before the run
    if written is not None and written.suffix in SUFFIXES:
        load_matplotlib()
    with progress(2 + bool(page)) as work:
        given = _loaded(target, work)
        work.step("run it")
        found = run_users(
            target,
            lambda: count(given.model, given.args, given.kwargs, gradients=gradients),
        )
        if page is not None:
            work.step("plan")
            plan = Asked(policy=policy).inspect(given)
            plan.to_html(page, exponents=found.tensors)
            say(f"wrote {page}: the plan, and {len(found.tensors)} histograms")
    if written is not None:
        if written.suffix == ".json":
            found.save(written)
        else:
            found.plot().savefig(written)
        say(f"wrote {written}: exponents of {len(found.tensors)} tensors")
    answer(found.to_json, found, as_json=as_json)
