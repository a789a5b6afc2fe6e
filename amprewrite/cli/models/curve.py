"""The command for the Pareto front of a model: relative error against bytes moved."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.models.given import Ruled, planned
from amprewrite.cli.options import (
    AsJson,
    RunBy,
    TargetName,
    writable,
)
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.factories import load_factory
from amprewrite.report.pareto import pareto_json, pareto_table
from amprewrite.report.plots import SUFFIXES, load_matplotlib, plot_pareto


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
        work.step("load the model")
        given = load_factory(target)
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
    if as_json:
        show_json(pareto_json(found))
    else:
        show(pareto_table(found))
