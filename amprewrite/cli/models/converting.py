"""The commands that convert a model: convert, verify."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from amprewrite import api
from amprewrite.cli.group import FAILED, app
from amprewrite.cli.models.given import Applied, planned
from amprewrite.cli.options import (
    AsJson,
    Graph,
    Html,
    TargetName,
    html_page,
    save_plan,
    writable,
)
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.errors import AmpWarning
from amprewrite.factories import ModelCall, load_factory
from amprewrite.plan.bounds import check_rtol


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
        work.step("load the model")
        given = load_factory(target)
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
        work.step("load the model")
        given = load_factory(target)
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
    if as_json:
        show_json(report.to_json())
    else:
        show(report)
    for problem in report.problems[:1]:
        say(f"amprewrite: verification failed: {problem}")
        raise typer.Exit(FAILED)
