"""The command that holds the others, and what happens to their errors."""

import warnings
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from amprewrite.cli.show import say
from amprewrite.errors import AmpError, AmpWarning, PolicyError, VerifyError

FAILED, MISTAKE = 1, 2
"""Exit codes beside 0."""


class _Group(TyperGroup):
    """Commands whose mistakes are one line on stderr, not a traceback."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # typer's own context
        """Run the command; exit 2 on an error of this package, 1 if not verified.

        Warnings stay silent: the plans that they are about hold them too.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AmpWarning)
                return super().invoke(ctx)
        except AmpError as error:
            _fail(error)


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A compiler for precision: decides for every operation of a model in which "
    "precision it runs, places the casts, and proves the result.",
)


def main() -> None:
    """Run the command line."""
    app()


def _fail(error: AmpError) -> NoReturn:
    lines = str(error).split("\n")
    shown = (
        lines if isinstance(error, PolicyError) else [" ".join(" ".join(lines).split())]
    )
    say("\n".join([f"amprewrite: {shown[0]}", *shown[1:]]))
    raise typer.Exit(FAILED if isinstance(error, VerifyError) else MISTAKE)
