"""A row: one tensor in each run."""

from amprewrite.unit_scaling.tracking import Scale, ScaleRow, Tracked

ONE, TWO = Scale(1.0, 1.0, 2.0, 0.0), Scale(2.0, 2.0, 4.0, 0.5)


def test_a_row_has_the_name_of_the_first_run_and_the_place_that_is_known():
    captured = Tracked("cross_entropy_loss", "", (), TWO, None)
    called = Tracked("cross_entropy", "", (), ONE, ONE)
    row = ScaleRow.of(called, captured)
    assert (row.name, row.where, row.shape) == ("cross_entropy", "", ())
    assert row.scales("forward") == (ONE, TWO)
    assert row.scales("backward") == (ONE, None)
    placed = Tracked("cross_entropy", "loss", (), ONE, ONE)
    assert ScaleRow.of(captured, placed).where == "loss"


def test_a_run_without_the_tensor_has_no_scales():
    row = ScaleRow.of(None, Tracked("gelu", "mlp", (3,), ONE, TWO))
    assert (row.name, row.shape) == ("gelu", (3,))
    assert row.scales("forward") == (None, ONE)
    assert row.scales("backward") == (None, TWO)
