from dataclasses import replace

from amprewrite.verify.rows import OpError, worst


def row(op, own):
    place = ("add", "aten.add", "layer.0", "model.py:3")
    return OpError(op, *place, "bfloat16", own=own, accumulated=0.0, nonfinite=0)


def names(rows, count):
    return [found.op for found in worst(rows, count)]


def test_equal_errors_keep_the_order_of_the_program():
    errors = [row(op, 0.5) for op in "012"]
    assert names(errors, 2) == ["0", "1"]
    assert names(errors, 0) == []


def test_ops_come_by_their_effect_on_the_outputs_where_it_is_known():
    rows = [row(op, own) for op, own in {"a": 0.5, "b": 0.2, "c": 0.1}.items()]
    shares = {"a": 0.1, "b": 0.2, "c": 0.7}
    rows = [replace(row, share=shares[row.op]) for row in rows]
    assert names(rows, 3) == ["c", "b", "a"]
    rows[1] = replace(rows[1], kernel=0.5, explained=0.1)
    assert names(rows, 3) == ["b", "c", "a"]
    assert "70% of the error, own error" in str(rows[2])
    rows[2] = replace(rows[2], inserted=True)
    assert names(rows, 3) == ["b", "a"]


def test_what_is_not_finite_comes_first():
    rows = [
        row(op, float(own)) for op, own in zip("abc", (1, "inf", "nan"), strict=True)
    ]
    assert names(rows, 3)[-1] == "a"


def test_a_line_says_where():
    line = str(row("0", 0.71))
    assert line == (
        "0 (aten.add, bfloat16) own error 0.71, accumulated 0 at layer.0, model.py:3"
    )


def test_faults_come_by_how_far_they_are_beyond_rounding():
    known = {"a": (0.2, 0.1), "b": (0.3, 0.1), "c": (0.1, 0.0), "d": (0.1, 0.1)}
    rows = [
        replace(row(op, 1.0), kernel=k, explained=e) for op, (k, e) in known.items()
    ]
    assert names(rows, 4) == ["c", "b", "a", "d"]
    assert [found.excess for found in rows] == [2, 0.3 / 0.1, float("inf"), 0]
