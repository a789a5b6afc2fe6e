"""Scales of one run, and their table."""

from amprewrite.unit_scaling.tracking import Scale, Tracked, Tracks


def test_a_table_has_a_row_for_each_tensor():
    one = Scale(1.0, 2.0, 3.0, 0.25)
    rows = (
        Tracked("linear", "layer.0", (2, 3), one, one),
        Tracked("x", "", (), one, None),
    )
    table = Tracks(rows)
    lines = str(table).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [
        *("linear", "1", "2", "3", "25.0%", "|", "1", "2", "3", "25.0%", "layer.0")
    ]
    assert lines[2].split() == ["x", "1", "2", "3", "25.0%", "|"]
    assert table["x"] is rows[1]


def test_a_run_alone_is_a_table_with_one_column_of_scales():
    one = Scale(1.0, 2.0, 3.0, 0.25)
    tracks = Tracks((Tracked("a<b", "", (2,), one, None),))
    table = tracks.table()
    assert table.heads == ("scales",)
    assert table["a<b"].scales("forward") == (one,)
    assert tracks._repr_html_() == table.html()
