"""The budgets of code lines, and the errors of the packages over them."""

from pathlib import Path

from tools import size

SOURCE = '''"""A module."""

# A comment.
A = 1
"""An attribute."""


def f(
    x,
):
    """A function."""
    text = """two
lines"""
    return x, text  # another comment
'''


def test_code_lines_are_without_comments_and_docstrings():
    assert size.code_lines(SOURCE) == 1 + 3 + 2 + 1


def test_a_module_counts_towards_its_package():
    names = [
        ("amprewrite/api.py", "amprewrite"),
        ("amprewrite/ir/graph.py", "amprewrite/ir"),
        ("amprewrite/passes/cost/cost.py", "amprewrite/passes"),
        ("amprewrite/frameworks/base.py", "amprewrite/frameworks"),
        ("amprewrite/frameworks/jaxpr/capture/trace.py", "amprewrite/frameworks/jaxpr"),
        ("tools/walk.py", "tools"),
    ]
    for path, name in names:
        assert size.package_of(Path(path)) == name


def test_every_package_is_within_its_budget():
    assert not size.excesses(size.sizes(size.ROOT), size.budgets(size.ROOT))


def test_a_package_over_its_budget_is_an_error(monkeypatch, capsys):
    (over,) = size.excesses({"a": 1200, "b": 3}, {"a": 1000, "b": 3})
    assert over == (
        "a has 1,200 code lines, and a budget of 1,000: delete 200, or raise the "
        "budget in [tool.size] of pyproject.toml in a commit that says what the lines "
        "buy"
    )
    new, gone = size.excesses({"a": 1}, {"b": 2})
    assert (
        new
        == "a has 1 code lines and no budget: add it to [tool.size] of pyproject.toml"
    )
    assert gone == (
        "b has a budget and no code: delete its line in [tool.size] of pyproject.toml"
    )
    monkeypatch.setattr(size, "budgets", lambda _root: {})
    assert size.main() == 1
    assert "amprewrite/ir has" in capsys.readouterr().err
    monkeypatch.undo()
    assert size.main() == 0
