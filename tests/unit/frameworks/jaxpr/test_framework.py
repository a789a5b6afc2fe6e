"""The framework jax as the core uses it."""

import inspect

import pytest

pytest.importorskip("jax")

from amprewrite.frameworks.base import Framework, Stepper
from amprewrite.frameworks.jaxpr import framework

EVERY = {**vars(Stepper), **vars(Framework)}
ASKED = {n: f for n, f in EVERY.items() if not n.startswith("_")}


def test_it_offers_what_is_asked_and_nothing_else():
    assert sorted(framework.__all__) == sorted(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_every_function_takes_what_it_is_given(name):
    given = list(inspect.signature(ASKED[name]).parameters)[1:]
    inspect.signature(getattr(framework, name)).bind(*given)
