"""The backend of ``torch.compile``, as far as it needs no torch."""

import sys
from typing import Any

import pytest

from amprewrite import backend
from amprewrite.errors import ArgumentError, PolicyError, UnsupportedError
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
    monkeypatch.setattr(backend, "prices", lambda *_, **_given: EAGER)
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


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tolerance": 1e-3}, ArgumentError, "no option 'tolerance'.*convert takes it"),
        (
            {"placement": "optmal"},
            UnsupportedError,
            r"options\['placement'\] is 'optmal'; want promote, .*mean 'optimal'",
        ),
        (
            {"target": "compield"},
            UnsupportedError,
            r"options\['target'\] is 'compield'; want eager, .*mean 'compiled'",
        ),
        ({"target": 3}, UnsupportedError, r"options\['target'\] is 3; want eager"),
        ({"plans": ()}, ArgumentError, r"options\['plans'\] is a tuple; want a list"),
        ({"policy": "bf61"}, PolicyError, r"options\['policy'\]: .*mean 'bf16'"),
        ({"overrides": "x"}, ArgumentError, "overrides is a str; want a list of rules"),
        ({"overrides": [{"pth": "0"}]}, PolicyError, r"(?s)overrides\[0\].*'path'"),
    ],
)
def test_a_mistake_is_named_by_its_option(
    given: dict[str, Any], options: Any, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        backend.amprewrite("module", [], options=options)
    assert not given


def test_the_mistakes_of_a_policy_are_kept(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[groups]\nsoftmx = "deny"\ncontractoin = "allow"\n')
    with pytest.raises(PolicyError) as raised:
        backend.amprewrite("module", [], options={"policy": path})
    assert len(raised.value.mistakes) > 1


def test_a_mistake_in_a_policy_is_found_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="unknown policy 'bf61'"):
        backend.amprewrite("module", [], options={"policy": "bf61"})
    assert not given
