"""The command group, and the mapping of errors to messages and exit codes."""

import errno
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import amprewrite
from amprewrite.cli.show import say, show, show_json
from amprewrite.errors import AmpError, AmpWarning, PolicyError, VerifyError

FAILED, MISTAKE, BROKEN = 1, 2, 3
"""Exit codes other than 0: not verified, a mistake of the user, an internal error."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 verification failed; 2 a mistake in the arguments or files, "
    "named in one line, with --json as an object with the key error; 3 an error of "
    "amprewrite itself."
)


class CommandGroup(TyperGroup):
    """Command group with the exit codes in the help of each command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401  # typer's own
        """Return a command with the exit codes at the end of its help."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and not found.epilog:
            found.epilog = EXIT_CODES
        return found


class _Group(CommandGroup):
    """Command group that prints a user's mistake as one line on stderr."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  # typer's own context
        """Run the command; exit 2 on an error of this package, 1 if not verified.

        Warnings of this package are silenced: the printed plans list them.
        """
        as_json = "--json" in ctx.args
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AmpWarning)
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader closed the pipe, which typer knows
            if (message := _of_typer(error)) is not None:
                if as_json:
                    _show_error(error, message)
                raise
            raise typer.Exit(_said(error, as_json=as_json)) from error


def _of_typer(error: Exception) -> str | None:
    """Return the message of a wrong option, printed by typer; None for other errors."""
    message = getattr(error, "format_message", None)  # typer does not export its base
    return str(message()) if callable(message) else None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A compiler for precision: decides for every operation of a model in which "
    "precision it runs, places the casts, and proves the result.",
    epilog=EXIT_CODES,
)


def _version(asked: bool) -> None:  # noqa: FBT001  # typer calls it by position
    if asked:
        show(f"amprewrite {amprewrite.__version__}")
        raise typer.Exit


@app.callback()
def common(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            is_eager=True,
            callback=_version,
        ),
    ] = False,
) -> None:
    """Read the options that come before every command."""
    del version  # its callback did all


def main() -> None:
    """Run the command line."""
    app()


def _said(error: Exception, *, as_json: bool) -> int:
    """Print an error to stderr and return the exit code for it."""
    code = MISTAKE
    match error:
        case VerifyError():
            text, code = str(error), FAILED
        case AmpError():
            text = str(error)
        case RecursionError():
            text = "an argument or a file is nested too deeply"
        case OSError():
            text = f"{type(error).__name__}: {error}"
        case _:
            text, code = f"{type(error).__name__}: {error}", BROKEN
            say("".join(traceback.format_exception(error)).rstrip())
    lines = text.split("\n")
    if not isinstance(error, PolicyError):
        lines = [" ".join(text.split())]
    say("\n".join([f"amprewrite: {lines[0]}", *lines[1:]]))
    if as_json:
        _show_error(error, "\n".join(lines))
    return code


def _show_error(error: Exception, message: str) -> None:
    """Print an error to stdout as JSON."""
    mistakes = getattr(error, "mistakes", ())
    details = {"mistakes": list(mistakes)} if mistakes else {}
    kind = type(error).__name__
    show_json({"ok": False, "error": {"kind": kind, "message": message, **details}})
