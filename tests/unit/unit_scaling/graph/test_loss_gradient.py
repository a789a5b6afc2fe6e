"""One factor for the gradient of a loss of which terms share a network."""

import pytest

from amprewrite.unit_scaling.graph.assign import loss_gradient
from amprewrite.unit_scaling.graph.scales import OUTPUT
from amprewrite.unit_scaling.graph.units import Edge, Unit


def unit(name, reads, *, loss):
    edges = tuple(Edge(value, name, i) for i, value in enumerate(reads))
    return Unit(name, (), edges, (name,), is_of_loss=loss)


UNITS = (
    unit("h", ("x",), loss=False),
    unit("m", ("h",), loss=True),  # a mean of 512 terms
    unit("n", ("h",), loss=True),  # one of 64 terms, by a weight of 1/100
    unit("p", ("w",), loss=True),  # a penalty
    unit("q", ("m", "n"), loss=True),
    unit("y", ("q", "p"), loss=True),
)
BACKWARD = {"m": {0: 512.0}, "n": {0: 6400.0}, "p": {0: 0.5}, "q": {}, "y": {}}


@pytest.mark.parametrize(
    ("cut", "factors"),
    [
        ([], [512.0]),  # the term that needs the least; the penalty leads nowhere
        ([Edge("h", "n", 0)], []),  # that has its factor
    ],
)
def test_the_loss_has_the_factor_that_joined_edges_lack(cut, factors):
    found = loss_gradient(UNITS, BACKWARD, frozenset(cut), ["y"])
    assert [(s.value, s.index, s.forward, s.backward) for s in found] == [
        ("y", OUTPUT, 1.0, factor) for factor in factors
    ]


def test_an_output_that_is_no_loss_has_none():
    assert not loss_gradient(UNITS[:1], {}, frozenset(), ["h"])


def test_a_total_beside_its_terms_gives_all_of_them_its_factor():
    found = loss_gradient(UNITS, BACKWARD, frozenset(), ["y", "n"])
    assert {(s.value, s.index): s.backward for s in found} == {
        ("y", OUTPUT): 512.0,
        ("n", OUTPUT): 512.0,  # by itself it needs 6400
    }
