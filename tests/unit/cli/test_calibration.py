"""What was measured, as it is printed."""

from dataclasses import replace

from rich.table import Table

from amprewrite.cli.machine import calibration_parts
from amprewrite.cli.show import show
from tests.calibrations import calibration, slow_below


def test_speeds_are_printed_by_shape_and_op(capsys):
    found = calibration(bfloat16=slow_below(10**4), float16=lambda _: 2.0)
    show(*calibration_parts(found))
    out = capsys.readouterr().out
    lines = [" ".join(line.replace("│", "").split()) for line in out.splitlines()]
    assert lines[0] == "Slow & Sons (cpu) by torch 2.0"
    assert "product 8 512 0.1 0.25 0.50" in lines
    assert "product 32 32,768 3.3 4.00 0.50" in lines
    assert "add 0.4 2.00 2.00" in lines
    cast = "casts to float16: 0.60 ns an element, 0.60 ns back, 0.0 us to start"
    assert lines[-1] == cast


def test_what_is_measured_for_jax_alone_is_said():
    found = calibration()
    parts = list(calibration_parts(replace(found, emits_accumulators=True)))
    assert parts[-1] == "bfloat16 contractions hand over float32 sums"
    other = replace(found, emits_accumulators=False)
    assert "hand over bfloat16 sums" in str(list(calibration_parts(other))[-1])


def test_several_at_once_and_what_was_not_timed_are_told():
    found = calibration()
    first = found.contractions[0]
    one = replace(first, batches=16, kind="batched", seconds={"float32": 1e-6})
    parts = calibration_parts(replace(found, contractions=(one,)))
    table = next(part for part in parts if isinstance(part, Table))
    cells = [list(column.cells) for column in table.columns]
    assert [cell[0] for cell in cells] == ["16 x batched", "8", "512", "1.0", "", ""]
