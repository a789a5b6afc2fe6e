"""State that a converted model shares with all of its parts."""

import gc
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.errors import AmpWarning, UnsupportedError
from amprewrite.frameworks.torch_fx.module.converted_module import ConvertedModule
from amprewrite.frameworks.torch_fx.programs import shared_state
from amprewrite.frameworks.torch_fx.programs.shared_state import SharedState


def state(*, trains: bool = False, mode: bool | None = None) -> SharedState:
    return SharedState(None, trains, mode)


class Trained(ConvertedModule):
    """A program that notes that its weights are trained."""

    trained = False

    def weights_are_trained(self) -> None:
        self.trained = True


def test_the_program_called_longest_ago_goes_and_it_warns_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_state, "MANY", 3)
    shared, programs = state(), [ConvertedModule() for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared.add(programs[0])
        shared.add(programs[1])
    shared.clock += 1
    programs[0].used = shared.clock
    with pytest.warns(AmpWarning, match=r"were captured .* convert with dynamic_shap"):
        shared.add(programs[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared.add(programs[3])
        assert shared.programs == [programs[0], programs[2], programs[3]]
        shared.add(programs[4])
    assert shared.programs == programs[2:5]
    assert [program.number for program in programs] == [1, 2, 3, 4, 5, 0]


def test_the_limit_is_what_the_warning_says() -> None:
    assert shared_state.TOO_MANY.startswith(f"{shared_state.MANY} programs were")


def test_the_model_is_not_kept_alive_and_parts_without_it_say_so() -> None:
    shared, model = state(), nn.ReLU()
    shared.own(model, lambda *_: None)
    assert shared.root() is model
    del model
    gc.collect()
    with pytest.raises(UnsupportedError, match=r"does not exist any more.*original\("):
        shared.root()


def test_new_parts_are_adopted_by_the_function_given() -> None:
    shared, model, found = state(), nn.ReLU(), list[Any]()
    shared.adopt_parts()  # without a model there is nothing to adopt
    shared.own(model, lambda *given: found.append(given))
    shared.adopt_parts()
    assert found == [(model, shared)]


@pytest.mark.parametrize("mode", [False, True])
def test_a_model_for_inference_has_one_mode(*, mode: bool) -> None:
    shared = state(mode=mode)
    shared.check_mode(mode)
    have, want = ("train", "eval") if mode else ("eval", "train")
    with pytest.raises(
        UnsupportedError, match=rf"for inference in {have} mode.*call model\.{want}\(\)"
    ):
        shared.check_mode(not mode)


def test_a_pickled_model_for_training_has_the_modes_of_its_programs() -> None:
    shared = SharedState(None, trains=True, mode=True)
    shared.check_mode(True)
    with pytest.raises(UnsupportedError, match="was pickled with its programs for tra"):
        shared.check_mode(False)


def test_programs_are_told_that_weights_are_trained() -> None:
    shared, program = state(trains=True), Trained()
    shared.programs.append(program)
    shared.check_mode(False)
    assert not program.trained
    shared.check_mode(True)
    assert program.trained


def test_a_reason_not_to_copy_is_raised() -> None:
    shared = state()
    shared.refuse_copy()
    shared.refusal = "for a reason"
    with pytest.raises(UnsupportedError, match=r"^for a reason$"):
        shared.refuse_copy()


def test_a_copy_has_the_request_but_neither_programs_nor_model() -> None:
    shared, memo, model = state(trains=True, mode=True), dict[int, Any](), nn.ReLU()
    shared.refusal, shared.hooks, shared.model = (
        "a reason",
        {"_forward_hooks": {}},
        model,
    )
    shared.own(model, lambda *_: None)
    shared.programs.append(ConvertedModule())
    made = shared.copied(memo)
    assert memo == {id(shared): made}
    same = ("capture", "trains", "mode", "refusal", "hooks")
    assert all(getattr(made, name) == getattr(shared, name) for name in same)
    assert (made.programs, made.model, made.clock) == ([], None, 0)
    assert made.watch is not shared.watch
    with pytest.raises(UnsupportedError, match="does not exist"):
        made.root()
