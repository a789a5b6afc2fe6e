"""The framework torch as the core uses it."""

import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.base import Framework, Request, Stepper
from amprewrite.frameworks.torch_fx import framework
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


X = torch.ones(2, 4)
MODEL = torch.nn.Linear(4, 4).eval()

PLANNER: Any = None
OBSERVE: Any = None
"""Arguments that are not looked at."""


def test_what_is_no_model_of_torch_is_refused():
    model = r"found a int; want a torch\.nn\.Module, GraphModule or ExportedProgram"
    for call in (
        lambda: framework.convert(3, Request(PLANNER)),
        lambda: framework.inspect(3, Request(PLANNER)),
        lambda: framework.measure(3, MODEL, Call((X,), {})),
        lambda: framework.walk(3, MODEL, Call((X,), {}), OBSERVE),
        lambda: framework.graph_text(3, (X,), {}),
        lambda: framework.save_program(3, (X,), {}, Path("no.pt2")),
    ):
        with pytest.raises(UnsupportedError, match=model):
            call()
    with pytest.raises(UnsupportedError, match="found a int; want a converted model"):
        framework.measure(MODEL, 3, Call((X,), {}))


def test_an_exported_program_has_a_text_and_a_file(tmp_path):
    program = torch.export.export(MODEL, (X,))
    text = framework.graph_text(program, (X,), {})
    assert "linear = linear(%input_1, %weight, %bias)" in text
    framework.save_program(program, (X,), {}, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(X), MODEL(X))
