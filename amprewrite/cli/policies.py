"""The commands for policies: list, show, compare, check."""

from pathlib import Path
from typing import Annotated, Any

import typer

from amprewrite.cli.group import EXIT_CODES, CommandGroup, app
from amprewrite.cli.options import AsJson, complete_policy
from amprewrite.cli.show import answer, say, show_json
from amprewrite.policy import load_policy
from amprewrite.report import policies


class _Policies(CommandGroup):
    """Group of commands: a name alone shows that policy, and nothing lists all."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  # typer's own
        """Add the command that is meant where none is named."""
        asks_help = any(option in args for option in ctx.help_option_names)
        first = next((arg for arg in args if not arg.startswith("-")), None)
        if first is None and not asks_help:
            args = ["list", *args]
        elif first is not None and first not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


group = typer.Typer(cls=_Policies, rich_markup_mode=None, epilog=EXIT_CODES)
app.add_typer(group, name="policy")

NAMED = "A shipped policy, a .toml file or a jmp string."

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help=NAMED, autocompletion=complete_policy),
]
Other = Annotated[
    str,
    typer.Argument(metavar="OTHER", help=NAMED, autocompletion=complete_policy),
]


@group.callback()
def policy() -> None:
    """List, show, check and compare policies; a name alone shows that one."""


@group.command("list")
def list_all(*, as_json: AsJson = False) -> None:
    """List the shipped policies."""
    answer(policies.descriptions, policies.names_table(), as_json=as_json)


@group.command("show")
def show_one(name: Name, *, as_json: AsJson = False) -> None:
    """Show a policy: the class of every op, and why."""
    one = load_policy(name)
    table = policies.policy_table(one)
    answer(lambda: policies.policy_json(one), table, as_json=as_json)


@group.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .toml file.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Print every mistake in a policy file."""
    found = load_policy(file.resolve())
    say(f"{file}: no mistakes; {len(found.ops)} ops, {len(found.rules)} rules")
    if as_json:
        show_json({"ok": True, "ops": len(found.ops), "rules": len(found.rules)})


@group.command()
def diff(name: Name, other: Other, *, as_json: AsJson = False) -> None:
    """Compare two policies: settings, classes of ops and rules that differ."""
    lines = list(policies.policy_diff(load_policy(name), load_policy(other)))
    answer(lambda: lines, *(lines or ["no difference"]), as_json=as_json)
