"""Conditions on the extents of the inputs under which a captured program is valid."""

import copy
import pickle
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.capture.program import open_program
from amprewrite.frameworks.torch_fx.compat import shape_guards
from amprewrite.frameworks.torch_fx.compat.shape_guards import (
    GUARDS,
    Guards,
    keep,
    kept,
    recorded,
    take_out,
)

TEXTS = "args[0].size()[0] >= 4", "args[0].size()[0] % 2 == 0"


class Branches(nn.Module):
    def forward(self, given: Any) -> Any:
        return given["x"] + 1 if given["x"].shape[0] >= 4 else given["x"] - 1


@pytest.fixture(scope="module")
def exported() -> Any:
    rows = {"given": {"x": {0: torch.export.Dim.AUTO}}}
    given = ({"x": torch.ones(6, 2)},)
    return torch.export.export(Branches(), given, dynamic_shapes=rows, strict=False)


def rows(count: int) -> list[Tensor]:
    return [torch.ones(count, 2)]


def test_the_first_condition_that_does_not_hold_is_named() -> None:
    guards = Guards(TEXTS)
    assert guards.broken(rows(6)) == ""
    assert guards.broken(rows(5)) == TEXTS[1]
    assert guards.broken(rows(3)) == TEXTS[0]
    assert Guards().broken(rows(1)) == ""


def test_a_function_says_its_condition_by_an_error() -> None:
    def check(x: Tensor) -> None:
        if x.shape[0] <= 4:
            raise AssertionError("Guard failed: more than four")

    guards = Guards(function=check)
    assert guards.broken(rows(5)) == ""
    assert guards.broken(rows(4)) == "more than four"
    with pytest.raises(UnsupportedError, match="convert the exported program instead"):
        pickle.dumps(guards)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
)
def test_expressions_are_copied_and_pickled(copied: Any) -> None:
    twin = copied(Guards(TEXTS))
    assert twin == Guards(TEXTS)
    assert twin.broken(rows(5)) == TEXTS[1]


def test_what_export_records_is_about_the_flat_inputs(exported: Any) -> None:
    with recorded() as texts:
        exported.module()
    assert texts
    assert not [text for text in texts if "L[" in text]
    guards = Guards(tuple(texts))
    assert guards.broken(rows(9)) == ""
    assert "args[0].size()[0]" in guards.broken(rows(3))
    known = list(texts)
    exported.module()
    assert texts == known, "after the context nothing is recorded"


@pytest.mark.parametrize("change", ["gone", "moved"])
def test_a_release_that_tells_no_texts_has_the_function(
    exported: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "gone":
        empty = ModuleType("unlift")
        monkeypatch.setattr(shape_guards, "import_module", lambda _: empty)
    else:
        monkeypatch.setattr(shape_guards.threads, "replaced", lambda *_: nullcontext())
    guards = kept(open_program(exported))
    assert (guards.texts, guards.function is None) == ((), False)
    assert guards.broken(rows(9)) == ""
    assert guards.broken(rows(3))


def test_conditions_are_taken_out_of_a_module_and_kept_with_it(exported: Any) -> None:
    module = exported.module()
    assert module.graph.find_nodes(op="call_module", target=GUARDS)
    function = take_out(module)
    assert function is not None
    assert not hasattr(module, GUARDS)
    assert not module.graph.find_nodes(op="call_module", target=GUARDS)
    module.graph.lint()
    assert Guards(function=function).broken(rows(3))
    assert take_out(module) is None
    assert kept(module) == Guards()
    keep(module, Guards(TEXTS))
    assert kept(module) == Guards(TEXTS)


def test_a_view_in_the_example_is_no_condition_on_what_it_is_a_view_of() -> None:
    class Double(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    base = torch.ones(6, 5)
    batch = {"x": {0: torch.export.Dim.AUTO}}
    exported: Any = torch.export.export(Double(), (base[:, :-1],), dynamic_shapes=batch)
    with recorded() as texts:
        exported.module()
    assert Guards(tuple(texts)).broken([torch.ones(3, 4)]) == ""
