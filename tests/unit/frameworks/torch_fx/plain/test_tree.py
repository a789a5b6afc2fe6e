"""Copies of the tree of modules of a model."""

import threading
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.plain.tree import (
    bound_attribute,
    bound_attributes,
    copy_tree,
    scripted,
    scripts_of,
)
from tests.torch_programs import Program


def new_tensors(model: nn.Module) -> dict[int, Any]:
    """Return zeros for each tensor of ``model``, by identity."""
    return {id(t): nn.Parameter(torch.zeros_like(t)) for t in model.parameters()}


def test_a_copy_has_the_given_tensors_and_its_own_parts() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    values = new_tensors(model)
    made: Any = copy_tree(model, values)
    assert made[0].weight is made[1].weight is values[id(model[0].weight)]
    assert made[0] is not model[0]
    assert model[0].weight.any()


def test_attributes_that_cannot_be_copied_are_shared_and_others_copied() -> None:
    model: Any = nn.Linear(2, 2)
    model.lock, model.listed = threading.Lock(), [1]
    made: Any = copy_tree(model, new_tensors(model))
    assert made.lock is model.lock
    assert made.listed == [1]
    assert made.listed is not model.listed


def test_hooks_that_cannot_be_copied_are_shared() -> None:
    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, *given: object) -> None:
            """Do nothing."""

    model, hook = nn.Sequential(nn.Linear(2, 2)), Locked()
    model[0].register_forward_hook(hook)
    made: Any = copy_tree(model, new_tensors(model))
    assert list(vars(made[0])["_forward_hooks"].values()) == [hook]


def test_a_view_of_a_weight_becomes_a_view_of_the_new_one() -> None:
    model: Any = nn.Linear(2, 3)
    model.row = model.weight.detach()[1]
    values = new_tensors(model)
    made: Any = copy_tree(model, values)
    with torch.no_grad():
        made.weight.copy_(torch.arange(6.0).reshape(3, 2))
    assert made.row.tolist() == [2.0, 3.0]
    assert model.row.any()


@pytest.mark.parametrize("change", [Tensor.bfloat16, lambda t: t.t().contiguous().t()])
def test_a_view_of_a_weight_of_another_layout_is_refused(change: Any) -> None:
    model: Any = nn.Linear(2, 3)
    model.row = model.weight.detach()[1]
    values = {id(model.weight): nn.Parameter(change(model.weight.detach()))}
    if values[id(model.weight)].dtype == torch.bfloat16:
        model.row = model.row.view(torch.int32)
    with pytest.raises(UnsupportedError, match="a view of a weight that is laid out"):
        copy_tree(model, values)


def test_a_copy_with_other_tensors_is_refused_with_a_way_out() -> None:
    class Renews(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            return Renews(2, 2)

    model = Renews(2, 2)
    with pytest.raises(UnsupportedError, match=r"other parameters .*load_st"):
        copy_tree(model, new_tensors(model))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_outermost_scripts_are_found_and_shared() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    model: Any = Program(lambda m, x: m.a(x), a=torch.jit.script(inner))
    assert [path for path, _ in scripts_of(model)] == ["a"]
    assert scripted(model) == {id(model.a): model.a}
    made: Any = copy_tree(model, scripted(model))
    assert made.a is model.a
    assert not scripted(inner)


def test_functions_around_parts_are_found_in_partials_hooks_and_defaults() -> None:
    wraps: tuple[Any, ...] = (
        lambda part: partial(lambda x: part(x).relu()),
        lambda part: lambda x, held=part: held(x),
        lambda part: lambda x, *, held=part: held(x),
        lambda part: lambda x: part.weight @ x,
    )
    for wrap in wraps:
        part: Any = nn.Linear(2, 2)
        program: Any = Program(lambda m, x: m.a(x), a=part)
        program.taken = wrap(part)
        assert "taken of Program is a function" in bound_attribute(program)
        assert list(bound_attributes(program)) == ["taken"]
    model: Any = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: model.bias)
    assert "_forward_hooks of Linear" in bound_attribute(model)
    assert not bound_attribute(nn.Linear(2, 2))


def test_functions_around_parts_are_named_by_path_and_others_are_not() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    weight = model[0].weight
    model[0].scaled = lambda x: x * weight

    def free(x: Tensor) -> Tensor:
        return x * later

    model.free = free
    assert list(bound_attributes(model)) == ["0.scaled"], "later is not set yet"
    later = 2.0
    assert list(bound_attributes(model)) == ["0.scaled"]
