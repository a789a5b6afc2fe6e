"""The command for policies: list, show, compare, check."""

from pathlib import Path
from typing import Annotated

import typer

from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.show import say, show, show_json
from amprewrite.errors import TargetError
from amprewrite.policy import load_policy
from amprewrite.report import policies


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
        say(f"{check}: no mistakes; {len(found.ops)} ops, {len(found.rules)} rules")
        return
    if name is None and diff is not None:
        msg = f"--diff {diff}: compared with what? want policy NAME --diff OTHER"
        raise TargetError(msg)
    if name is None:
        if as_json:
            show_json(policies.descriptions())
        else:
            show(policies.names_table())
        return
    one = load_policy(name)
    if diff is not None:
        lines = list(policies.policy_diff(one, load_policy(diff)))
        show_json(lines) if as_json else show(*(lines or ["no difference"]))
    elif as_json:
        show_json(policies.policy_json(one))
    else:
        show(policies.policy_table(one))
