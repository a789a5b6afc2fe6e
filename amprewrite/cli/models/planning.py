"""The commands that plan and convert nothing: inspect, explain."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.models.given import Asked, planned
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
from amprewrite.factories import load_factory
from amprewrite.plan.table import decision_table
from amprewrite.report.modules import modules_table


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
        work.step("load the model")
        given = load_factory(target)
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
        work.step("load the model")
        given = load_factory(target)
        work.step("plan")
        text = asked.inspect(given).explain(name)
    if as_json:
        show_json({"ok": True, "name": name, "lines": text.split("\n")})
    else:
        show(text)
