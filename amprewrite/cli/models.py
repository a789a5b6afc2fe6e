"""The commands for one model: inspect, convert, verify."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from amprewrite import api
from amprewrite.cli.group import FAILED, app
from amprewrite.cli.options import (
    AsJson,
    Graph,
    Overrides,
    Placement,
    PlanFile,
    PlannedPolicy,
    PolicyName,
    TargetName,
    ToleranceText,
    load_plan,
    rules,
    save_plan,
    tolerance_of,
    writable,
)
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.errors import AmpWarning
from amprewrite.factories import ModelCall, load_factory
from amprewrite.plan.table import decision_table
from amprewrite.report.modules import modules_table


@app.command()
def inspect(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PolicyName = "bf16",
    placement: Placement = None,
    tolerance: ToleranceText = None,
    override: Overrides = None,
    *,
    explain: Annotated[
        str | None, typer.Option(metavar="OP", help="Say why one op runs as it does.")
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
    as_json: AsJson = False,
) -> None:
    """Show the plan for a model, its precisions and casts, without converting it.

    With --graph, the program as it is before conversion.
    """
    written = writable(output, ".json")
    with progress(2) as work:
        work.step("load the model")
        given = load_factory(target)
        work.step("plan")
        plan = api.inspect(
            given.model,
            policy,
            args=given.args,
            kwargs=given.kwargs,
            placement=placement,
            tolerance=tolerance_of(tolerance),
            overrides=rules(override or ()),
        )
    if written is not None:
        save_plan(plan, written)
    if as_json:
        show_json(plan.to_json())
    elif explain is not None:
        show(plan.explain(explain))
    elif graph:
        show(_graph_text(given.model, given))
    else:
        show(plan.summary(), modules_table(plan, by_layer=not modules))
        show(*([decision_table(plan)] if ops else []))


@app.command()
def convert(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PlannedPolicy = None,
    placement: Placement = None,
    tolerance: ToleranceText = None,
    override: Overrides = None,
    plan: PlanFile = None,
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
    as_json: AsJson = False,
) -> None:
    """Convert a model, and write its plan or the converted program.

    With --graph, the program as it is after conversion.
    """
    kinds = (".json", ".pt2", ".onnx", ".stablehlo")
    written = [path for path in output or () if writable(path, *kinds)]
    with progress(2 + len(written)) as work:
        work.step("load the model")
        given = load_factory(target)
        readers = api.program_files(given.model)
        for path in written:  # before any work: a file of the other framework
            writable(path, ".json", *readers)
        work.step("convert")
        converted = _convert(given, policy, placement, tolerance, override, plan)
        for path in written:
            work.step(f"write {path.name}")
            if path.suffix == ".json":
                save_plan(converted.plan, path)
            else:
                _save(converted, given, path)
                reader = readers[path.suffix]
                say(f"wrote {path}: the converted model; {reader} reads it")
    if as_json:
        show_json(converted.plan.to_json())
    else:
        show(_graph_text(converted, given) if graph else converted.plan.summary())


def _save(converted: Any, given: ModelCall, path: Path) -> None:  # noqa: ANN401  # any model
    """Write a converted model, and print the warnings about its file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AmpWarning)
        api.save_program(converted, given.args, given.kwargs, path)
    for warning in caught:
        if issubclass(warning.category, AmpWarning):
            say(f"amprewrite: warning: {warning.message}")


def _graph_text(model: Any, target: ModelCall) -> str:  # noqa: ANN401  # any model
    return api.graph_text(model, target.args, target.kwargs)


def _convert(  # options
    given: ModelCall,
    policy: str | None,
    placement: str | None,
    tolerance: str | None,
    override: list[str] | None,
    plan: Path | None,
) -> Any:  # noqa: ANN401  # the same kind as the model
    return api.convert(
        given.model,
        policy,
        args=given.args,
        kwargs=given.kwargs,
        placement=placement,
        tolerance=tolerance_of(tolerance),
        overrides=rules(override or ()),
        plan=load_plan(plan),
    )


@app.command()
def verify(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PlannedPolicy = None,
    placement: Placement = None,
    tolerance: ToleranceText = None,
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
            "the tolerance of the plan, or what its roundings explain."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a model, and compare the result with the model in full precision."""
    with progress(3) as work:
        work.step("load the model")
        given = load_factory(target)
        work.step("convert")
        converted = _convert(given, policy, placement, tolerance, override, plan)
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
    if as_json:
        show_json(report.to_json())
    else:
        show(report)
    for problem in report.problems[:1]:
        say(f"amprewrite: verification failed: {problem}")
        raise typer.Exit(FAILED)
