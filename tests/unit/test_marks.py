"""Markers work as decorators and context managers, and do nothing by themselves."""

import pytest

import amprewrite
from amprewrite.marks import MARKS


@pytest.mark.parametrize("mark", [amprewrite.full_precision, amprewrite.low_precision])
def test_a_marked_function_is_the_function(mark) -> None:
    @mark
    def double(x: int, *, more: int = 0) -> int:
        """Return twice x."""
        return 2 * x + more

    assert double(3, more=1) == 7
    assert (double.__name__, double.__doc__) == ("double", "Return twice x.")
    with mark():
        assert double(2) == 4


def test_what_the_scopes_ask_for() -> None:
    assert set(MARKS.values()) == {"full", "low"}


def test_a_scope_is_named_in_jax() -> None:
    jax = pytest.importorskip("jax")

    @amprewrite.full_precision
    def function(x):
        with amprewrite.low_precision():
            return x + 1

    (eqn,) = jax.make_jaxpr(function)(1.0).eqns
    assert list(MARKS) == str(eqn.source_info.name_stack).split("/")
