"""The backend of ``torch.compile``, as far as it needs no torch."""

import sys
from typing import Any

import pytest

from amprewrite import backend
from amprewrite.errors import ArgumentError, PolicyError
from amprewrite.passes.cost.cost_model import EAGER


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for torch's side and note what it is given."""
    seen: dict[str, Any] = {}

    class Assignment:
        @staticmethod
        def Backend(plan: Any, **options: Any) -> Any:  # noqa: N802  # as torch's side
            seen.update(options, planner=plan)
            return lambda module, inputs: (module, inputs)

    monkeypatch.setitem(
        sys.modules, "amprewrite.frameworks.torch_fx.backend", Assignment
    )
    monkeypatch.setattr(backend, "prices", lambda *_: EAGER)
    return seen


def test_a_graph_and_its_inputs_are_handed_over(given: dict[str, Any]) -> None:
    assert backend.amprewrite("module", ["x"]) == ("module", ["x"])
    assert list(given) == ["planner"]


def test_options_and_keyword_arguments_say_the_same(given: dict[str, Any]) -> None:
    backend.amprewrite("module", [], options={"target": "eager"}, target="compiled")
    assert given["target"] == "compiled"


def test_an_option_that_is_not_there_is_told_the_nearest(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"no option 'policies'.*mean 'policy'"):
        backend.amprewrite("module", [], options={"policies": "bf16"})
    with pytest.raises(ArgumentError, match="want overrides, placement, plans, policy"):
        backend.amprewrite("module", [], colour="red")
    assert not given


def test_a_mistake_in_a_policy_is_found_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="unknown policy 'bf61'"):
        backend.amprewrite("module", [], options={"policy": "bf61"})
    assert not given
