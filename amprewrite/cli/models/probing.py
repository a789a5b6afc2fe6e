"""The command that counts exponents of a model's numbers: histogram."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite.cli.group import app
from amprewrite.cli.models.given import Asked
from amprewrite.cli.options import (
    AsJson,
    Html,
    PolicyName,
    TargetName,
    html_page,
    writable,
)
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.factories import load_factory, run_users
from amprewrite.policy import load_policy
from amprewrite.probes import histogram as count
from amprewrite.report.plots import SUFFIXES, load_matplotlib


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
        work.step("load the model")
        given = load_factory(target)
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
    if as_json:
        show_json(found.to_json())
    else:
        show(found)
