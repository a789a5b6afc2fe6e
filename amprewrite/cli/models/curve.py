"""The command for the Pareto front of a model: relative error against bytes moved."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.models.given import Asked, KeepFull, Low, OpFull
from amprewrite.cli.options import (
    AsJson,
    Overrides,
    PolicyName,
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
def pareto(  # noqa: PLR0913  # options
    target: TargetName,
    policy: PolicyName = "bf16",
    override: Overrides = None,
    points: Annotated[int, typer.Option(help="How many errors are aimed at.")] = 8,
    runs: RunBy = None,
    *,
    keep_full: KeepFull = None,
    low: Low = None,
    op_full: OpFull = None,
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
    asked = Asked(policy, None, None, override, op_full, keep_full, low)
    if written is not None:
        load_matplotlib()
    with progress(2) as work:
        work.step("load the model")
        given = load_factory(target)
        work.step("plan and measure")
        found = api.pareto(
            given.model,
            policy,
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
