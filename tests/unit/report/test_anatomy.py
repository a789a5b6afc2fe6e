"""A number in formats as a table and as data."""

import io
import json

import pytest
from rich.console import Console

from amprewrite.dtypes.anatomy import anatomies
from amprewrite.report.anatomy import anatomy_json, anatomy_table, in_ulp


def test_errors_are_in_units_of_the_last_place():
    (row,) = anatomies("1.0001", ["float16"])
    assert in_ulp(row) == pytest.approx(-0.0001 * 1024)
    assert in_ulp(anatomies("1e9", ["float16"])[0]) is None


def test_numbers_that_are_not_finite_are_data():
    found = anatomy_json("1e400", anatomies("1e400"))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    kinds = {row["format"]: row["kind"] for row in found["formats"]}
    assert (kinds["float64"], kinds["float8_e4m3fn"]) == ("infinite", "nan")
    assert kinds["float4_e2m1fn"] == "normal"


def test_a_table_has_a_row_for_each_format():
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(anatomy_table(anatomies("6e-8")))
    text = console.export_text()
    assert "0 00000 0000000001" in text
    assert "subnormal" in text.split(" f16")[1].splitlines()[0]
