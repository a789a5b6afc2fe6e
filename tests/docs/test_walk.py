"""The way of a conversion through the code, as the page of the architecture has it."""

import sys

import pytest

from tools.walk import CONVERSIONS, ENDS, Call, entries, main, walk

MOST = 3
"""How often a module is entered at most on the way to the first cast."""

PASSES = (
    *("passes.analysis.classify", "passes.analysis.demand"),
    *("passes.placement.promote", "passes.placement.casts", "passes.cost.cost"),
)

STAGES = {
    "torch": (
        *("api", "frameworks.torch_fx.convert", "frameworks.torch_fx.capture.export"),
        *("frameworks.torch_fx.rewrite.read", *PASSES),
        "frameworks.torch_fx.rewrite.write",
    ),
    "jax": (
        *("api", "frameworks.jaxpr.convert", "frameworks.jaxpr.capture.trace"),
        *("frameworks.jaxpr.program.inline", "frameworks.jaxpr.program.read", *PASSES),
        "frameworks.jaxpr.interpret.interpreter",
    ),
}
"""Modules on the way, in the order in which it first comes to them."""


@pytest.mark.parametrize("framework", sorted(CONVERSIONS))
def test_no_module_is_entered_more_than_three_times(framework):
    pytest.importorskip(framework)
    CONVERSIONS[framework]()()  # what is loaded at first use is in place
    calls = walk(CONVERSIONS[framework](), ENDS[framework])
    often = {m: found for m, found in entries(calls).items() if len(found) > MOST}
    assert not often
    order = list(dict.fromkeys(call.module for call in calls))
    places = [order.index(module) for module in STAGES[framework]]
    assert places == sorted(places)
    assert calls[0][1:] == ("api", "convert")
    functions = {call.function for call in calls}
    assert "ProgramGraph.storage" in functions
    assert not functions & {"ProgramGraph.users", "Op.traits", "Decision.__init__"}
    assert not [name for name in functions if "<" in name]


def test_a_module_is_entered_once_from_each_other():
    calls = [
        *(Call("", "a", "f"), Call("a", "b", "g"), Call("b", "b", "h")),
        *(Call("a", "b", "i"), Call("c", "b", "k")),
    ]
    assert entries(calls) == {"a": [""], "b": ["a", "c"]}


def test_a_way_without_its_end_is_refused():
    before = sys.getprofile()
    with pytest.raises(ValueError, match=r"write\._cast_node is not called; want"):
        walk(lambda: None, ENDS["torch"])
    assert sys.getprofile() is before


def test_the_way_is_printed(capsys):
    pytest.importorskip("jax")
    main("jax")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 api: convert")
    assert lines[-1].startswith("2 frameworks.jaxpr.interpret.interpreter:")
    assert lines[-1].endswith(" cast")
