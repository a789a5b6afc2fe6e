"""The plain model of a converted one: the same tree, of the model's own classes."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.compat import module_hooks
from amprewrite.frameworks.torch_fx.module.low_marks import full_dtype, mark_low
from amprewrite.frameworks.torch_fx.plain.plain_class import STATE, follow_assigned
from amprewrite.frameworks.torch_fx.plain.plain_model import (
    full_dtypes,
    mark_as,
    named_tensors,
    plain_of,
    remember_low,
    without_conversion,
)

LOW, FULL = torch.bfloat16, torch.float32
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def network() -> Any:
    """Return a model with tied weights, and a norm that stays full."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)).eval()
    model[2].weight = model[0].weight
    return model


@pytest.fixture(scope="module")
def pair() -> Any:
    torch.manual_seed(0)
    model = network()
    return model, amprewrite.convert(model, args=(X,))


def test_a_tensor_says_its_dtype_in_the_model() -> None:
    held = torch.ones(2, dtype=LOW)
    assert full_dtype(held) == LOW
    mark_low(held, FULL)
    assert full_dtype(held) == FULL
    assert held.dtype == LOW


def test_low_tensors_are_widened_and_tied_ones_stay_tied(pair: Any) -> None:
    model, made = pair
    plain: Any = plain_of(made, shared=False)
    assert made[0].weight.dtype == LOW
    assert {t.dtype for _, _, t in named_tensors(plain)} == {FULL}
    assert plain[2].weight is plain[0].weight
    assert plain[0].weight is not model[0].weight
    assert torch.equal(plain[0].weight, model[0].weight.to(LOW).to(FULL))
    assert isinstance(plain[0].weight, nn.Parameter)


def test_it_is_of_the_models_classes_without_a_trace_of_the_conversion(
    pair: Any,
) -> None:
    model, made = pair
    plain = plain_of(made, shared=False)
    for theirs, ours in zip(plain.modules(), model.modules(), strict=True):
        assert type(theirs) is type(ours)
        assert vars(theirs).keys() == vars(ours).keys()
        assert type(vars(theirs)["_modules"]) is type(vars(ours)["_modules"])
    assert not module_hooks.load_hooks(plain)
    assert STATE in vars(made)


@pytest.mark.parametrize("shared", [True, False])
def test_full_tensors_are_shared_only_if_asked(pair: Any, *, shared: bool) -> None:
    _, made = pair
    plain: Any = plain_of(made, shared=shared)
    assert (plain[1].weight is made[1].weight) is shared
    assert plain[0].weight is not made[0].weight, "it is wider"


def test_a_part_has_a_plain_form_too(pair: Any) -> None:
    model, made = pair
    part = plain_of(made[0], shared=True)
    assert type(part) is nn.Linear
    assert torch.equal(part(X), nn.functional.linear(X, part.weight, part.bias))
    assert part.weight.dtype == FULL
    assert type(made[0]) is not nn.Linear
    del model


def test_recurrent_layers_run_with_their_new_weights() -> None:
    torch.manual_seed(0)
    model = nn.GRU(4, 4).eval()
    made: Any = amprewrite.convert(model, args=(X,))
    plain: Any = plain_of(made, shared=False)
    with torch.no_grad():
        plain.weight_ih_l0.zero_()
        plain.weight_hh_l0.zero_()
        plain.bias_ih_l0.zero_()
        plain.bias_hh_l0.zero_()
    assert not plain(X)[0].any(), "its flat weights are those"


def test_records_are_copied_in_order(pair: Any) -> None:
    _, made = pair
    twin = network().to(LOW)
    assert set(full_dtypes(twin)) == {LOW}
    mark_as(twin, full_dtypes(made))
    assert list(full_dtypes(twin)) == list(full_dtypes(made))
    assert set(full_dtypes(twin)) == {FULL}
    with pytest.raises(ValueError, match="longer"):
        mark_as(nn.Linear(4, 4), full_dtypes(made))


def test_named_tensors_are_those_of_all_parts_but_none(pair: Any) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
    found = [name for _, name, _ in named_tensors(model)]
    assert found == [
        *("weight", "bias", "running_mean", "running_var", "num_batches_tracked"),
        "weight",
    ]
    for kept, name, held in named_tensors(pair[1]):
        assert kept[name] is held


def test_other_load_hooks_stay() -> None:
    model: Any = nn.Linear(2, 2)
    model.register_load_state_dict_post_hook(follow_assigned)
    model.register_load_state_dict_post_hook(print)
    assert without_conversion(model) is model
    assert list(module_hooks.load_hooks(model).values()) == [print]


def test_what_cannot_be_copied_is_said() -> None:
    class Stuck(nn.Linear):
        def __setstate__(self, state: Any) -> None:
            raise RuntimeError("no copies of this")

    with pytest.raises(UnsupportedError, match=r"Stuck cannot be copied.*no copies"):
        plain_of(Stuck(2, 2), shared=True)


def test_a_tensor_in_the_place_of_a_low_one_and_of_its_dtype_is_low() -> None:
    model = network()
    known: Any = {}
    model[0].weight = nn.Parameter(torch.ones(4, 4, dtype=LOW))
    mark_low(model[0].weight, FULL)
    remember_low(model, known)
    assert known["0.weight"] == (LOW, FULL)
    model[0] = nn.Linear(4, 6, dtype=LOW)
    model[2] = nn.Linear(6, 4, dtype=LOW)
    remember_low(model, known)
    assert full_dtype(model[0].weight) == FULL
    assert full_dtype(model[2].weight) == LOW, "it was of the model's dtype before"
    assert full_dtype(model[0].bias) == LOW
