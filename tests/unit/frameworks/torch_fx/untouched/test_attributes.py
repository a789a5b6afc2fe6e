"""What a forward leaves in attributes is seen, and can be put back."""

import random
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.untouched.attributes import Attributes
from amprewrite.frameworks.torch_fx.untouched.first_constants import Constant


class Holder(nn.Module):
    """Holds a number, a tensor, a list and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.count, self.last = 0, torch.zeros(2)
        self.seen, self.table = [1], {"a": 1}


def change(model) -> None:
    model.count += 1
    model.last = torch.ones(2)
    model.seen.append(2)
    model.table["b"] = 2
    model.inner.note = "new"


def test_what_differs_is_named_as_the_code_calls_it() -> None:
    model = Holder()
    before = Attributes(model)
    assert before.names() == []
    change(model)
    assert set(before.names()) == {
        "self.count",
        "self.last",
        "self.seen",
        "self.table",
        "self.inner.note",
    }


def test_everything_is_put_back() -> None:
    model = Holder()
    seen, last = model.seen, model.last
    before = Attributes(model)
    change(model)
    before.restore()
    assert before.names() == []
    assert model.seen is seen
    assert seen == [1]
    assert model.last is last
    assert model.table == {"a": 1}
    assert not hasattr(model.inner, "note")


def test_a_new_flag_is_a_constant() -> None:
    model: Any = Holder()
    before = Attributes(model)
    model.ready = model.inner.ready = True
    assert before.names() == []
    assert before.constants() == [
        Constant("", "", "ready", True),
        Constant("inner", "", "ready", True),
    ]
    assert [c.full_name for c in before.constants()] == [
        "self.ready",
        "self.inner.ready",
    ]
    model.count = 0.0  # another number, though it is equal
    assert before.names() == ["self.count"]


class Config:
    def __init__(self) -> None:
        self.kind: Any = None
        self.text: Any = None
        self.size: Any = 1


def test_what_a_module_outside_of_the_submodules_gets_is_a_write() -> None:
    model: Any = Holder()
    hidden: Any = Holder()
    hidden.config, model.seen = Config(), [hidden]
    before = Attributes(model)
    hidden.ready = True
    hidden.config.kind = "regression"
    assert sorted(before.names()) == ["Holder.config", "Holder.ready"]
    assert before.constants() == []


def test_a_flag_of_hooks_is_no_constant() -> None:
    model: Any = Holder()
    before = Attributes(model)
    model.inner.register_forward_hook(lambda *_: None)
    model.ready = True
    assert before.names() == before.constants() == []


def test_a_name_that_an_object_gets_where_none_was_is_a_constant() -> None:
    model: Any = Holder()
    table: dict[str, Any] = {"kind": None}
    model.config, model.table = Config(), table
    model.config.text = Config()
    before = Attributes(model)
    model.config.kind = "regression"
    assert before.names() == []
    assert before.constants() == [Constant("", "config", "kind", "regression")]
    model.config.size = 2
    assert before.names() == ["self.config"]
    assert before.constants() == [], "of an object that is written otherwise"
    before.restore()
    model.config.text.kind = "regression"
    assert before.names() == ["self.config"], "a part of an object has no path"
    before.restore()
    assert model.config.text.kind is None
    assert model.config.kind is None
    model.config.size = "small"
    assert before.names() == ["self.config"]
    before.restore()
    model.config.kind = 1
    assert before.names() == ["self.config"]
    before.restore()
    table["kind"] = "regression"  # an item: the model may read it again
    assert before.names() == ["self.table"]


def test_modes_and_buffers_are_left_to_torch() -> None:
    model: Any = nn.BatchNorm1d(2)
    before = Attributes(model)
    model.eval()
    model.running_mean.add_(1)
    assert before.names() == []


@pytest.mark.parametrize("hooks", [True, False])
def test_hooks_go_or_stay_with_the_flags_that_say_so(hooks: bool) -> None:  # noqa: FBT001  # a parameter
    model: Any = Holder()
    model.known = False
    before = Attributes(model)
    handle = model.inner.register_forward_hook(print)
    model.known = model.new = True
    model.count = 5
    before.restore(hooks=hooks)
    assert (handle.id in model.inner._forward_hooks) is not hooks
    assert model.known is not hooks
    assert hasattr(model, "new") is not hooks
    assert model.count == 0


def test_numbers_drawn_from_generators_are_taken_back() -> None:
    model: Any = Holder()
    model.python, model.numpy = random.Random(1), np.random.default_rng(1)
    model.torch = torch.Generator()
    before = Attributes(model)
    assert (before.names(), before.drawn()) == ([], [])

    def draw() -> list[float]:
        return [
            random.random(),
            np.random.rand(),  # the global generator
            model.python.random(),
            model.numpy.random(),
            float(torch.rand((), generator=model.torch)),
        ]

    found = draw()
    assert before.names() == ["self.python", "self.numpy", "self.torch"]
    assert before.drawn() == ["random", "numpy.random"]
    before.restore()
    assert draw() == found


def test_a_generator_without_a_state_is_left_alone() -> None:
    model: Any = Holder()
    model.system = random.SystemRandom()
    before = Attributes(model)
    model.system.random()
    assert before.names() == []
    before.restore()
