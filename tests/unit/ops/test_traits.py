"""What one op is, and the names by which a table may hold it."""

from amprewrite.ops import UNKNOWN, line_key, op_keys


def test_nothing_is_taken_for_granted():
    assert (UNKNOWN.group, UNKNOWN.operand_rule) == ("", "equal")
    assert not UNKNOWN.exact_argument
    assert not UNKNOWN.aten


def test_the_most_exact_name_comes_first():
    assert list(op_keys("mylib.scan", "mylib.scan.default")) == [
        *("mylib.scan.default", "mylib.scan", "mylib::scan", "mylib.scan"),
    ]
    assert list(op_keys("sin", "sin")) == ["sin", "sin"]


def test_a_line_is_written_with_the_name_that_torch_writes():
    assert line_key("mylib.scan", "mylib.scan.default") == "mylib::scan"
    assert line_key("foo", "aten.foo.default") == "foo"
    assert line_key("cube", "cube") == "cube"
    assert line_key("getitem", "operator.getitem") == "getitem"
