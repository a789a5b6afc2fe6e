"""The command for promotion: one answer, a table, the page of differences."""

from functools import partial
from typing import Annotated

import typer

from amprewrite.cli.group import app
from amprewrite.cli.options import AsJson
from amprewrite.cli.show import answer, show
from amprewrite.dtypes import SYSTEMS
from amprewrite.errors import TargetError
from amprewrite.report import promotion
from amprewrite.report.promotion import differences_page


@app.command()
def promote(  # noqa: PLR0913  # options
    operands: Annotated[
        list[str] | None,
        typer.Argument(
            help="Dtypes, long or short: bfloat16, bf16; with [] behind it a 0-d "
            "array, i64[300] one of that value, with * a weak one. Or Python numbers: "
            "1, 1.0, 1j, True.",
        ),
    ] = None,
    system: Annotated[str, typer.Option(help=f"One of {', '.join(SYSTEMS)}.")] = "jax",
    op: Annotated[
        str | None, typer.Option(help="Print the casts of an op, such as matmul.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Show every pair of dtypes.")
    ] = None,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --op: say each step of its rule.")
    ] = False,
    x64: Annotated[
        bool, typer.Option("--x64", help="For JAX: 64-bit dtypes are enabled.")
    ] = False,
    differences: Annotated[
        bool, typer.Option("--differences", help="Write where systems differ.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the common dtype of operands, or the casts of an op, with the reasons."""
    if sum([bool(operands), table is not None, differences]) != 1:
        msg = "promote: want one of A B, such as int32 bfloat16; --table; --differences"
        raise TargetError(msg)
    if explain and (op is None or not operands):
        msg = "--explain: want --op OP and operands; without --op reasons are shown"
        raise TargetError(msg)
    if differences and as_json:
        raise TargetError("--differences --json: want --table SYSTEM --json")
    if differences:
        show(differences_page().rstrip("\n"))
    elif table is not None:
        pairs = promotion.promotion_table(table, x64=x64)
        data = partial(promotion.promotion_json, table, x64=x64)
        answer(data, pairs, as_json=as_json)
    else:
        given = operands or []
        found = (
            promotion.answer(given, system, x64=x64)
            if op is None
            else promotion.op_answer(op, given, system, x64=x64, steps=explain)
        )
        answer(found.to_json, str(found), as_json=as_json)
