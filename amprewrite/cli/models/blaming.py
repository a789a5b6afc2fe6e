"""The command that finds the ops which cause an error, and rules that help: blame."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite import api
from amprewrite.cli.group import app
from amprewrite.cli.models.given import Applied, planned
from amprewrite.cli.options import (
    AsJson,
    Html,
    TargetName,
    html_page,
    writable,
)
from amprewrite.cli.progress import progress
from amprewrite.cli.show import say, show, show_json
from amprewrite.errors import ArgumentError, VerifyError
from amprewrite.factories import load_factory


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
        work.step("load the model")
        given = load_factory(target)
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
