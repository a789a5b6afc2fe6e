"""Names of tensors are numbered."""

from amprewrite.measure.runs import numbered


def test_names_are_numbered_from_the_second_on():
    counts = {}
    names = [numbered(name, counts) for name in ("add", "mul", "add", "add")]
    assert names == ["add", "mul", "add_1", "add_2"]
