"""The command for one number in number formats: bits, neighbours, rounding error."""

from typing import Annotated

import typer

from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.show import answer
from amprewrite.dtypes.anatomy import anatomies
from amprewrite.report.anatomy import anatomy_json, anatomy_table


@app.command("format", context_settings={"ignore_unknown_options": True})
def show_formats(
    number: Annotated[
        str,
        typer.Argument(
            help="A decimal (0.15625, 1e-8), taken exactly; a hexadecimal float "
            "(0x1.4p-3), a fraction (1/3), inf or nan; each may have a sign."
        ),
    ],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--in",
            metavar="FORMAT",
            help="A float format, such as fp16, bf16, e4m3 or float8_e5m2; several by "
            "several options. Without it all of them.",
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a number in float formats: bits, neighbours and rounding error."""
    rows = anatomies(number, formats or ())
    table = anatomy_table(rows)
    answer(lambda: anatomy_json(number, rows), table, as_json=as_json)
