"""The framework jax as the core uses it."""

import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Framework, Request, Stepper
from amprewrite.frameworks.jaxpr import framework
from amprewrite.measure.runs import Call

EVERY = {**vars(Stepper), **vars(Framework)}
ASKED = {n: f for n, f in EVERY.items() if not n.startswith("_")}


def test_it_offers_what_is_asked_and_nothing_else():
    assert sorted(framework.__all__) == sorted(ASKED)


@pytest.mark.parametrize("name", ASKED)
def test_every_function_takes_what_it_is_given(name):
    given = list(inspect.signature(ASKED[name]).parameters.values())[1:]
    by_name = [x.name for x in given if x.kind is x.KEYWORD_ONLY]
    places = [x.name for x in given if x.kind is not x.KEYWORD_ONLY]
    found = inspect.signature(getattr(framework, name))
    found.bind(*places, **dict.fromkeys(by_name))


PLANNER: Any = None
OBSERVE: Any = None
"""Arguments that are not looked at."""


def test_what_is_no_function_or_module_is_refused():
    call = Call((1.0,), {})
    for refused in (
        lambda: framework.convert(3, Request(PLANNER)),
        lambda: framework.inspect(3, Request(PLANNER)),
        lambda: framework.measure(3, abs, call),
        lambda: framework.measure(abs, 3, call),
        lambda: framework.walk(3, abs, call, OBSERVE),
        lambda: framework.walk(abs, 3, call, OBSERVE),
        lambda: framework.graph_text(3, (), {}),
        lambda: framework.save_program(3, (), {}, Path("no.stablehlo")),
    ):
        with pytest.raises(UnsupportedError, match="found a int; want a function of"):
            refused()
