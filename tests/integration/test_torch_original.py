"""The plain model of a converted torch module: its class, its dtypes, its weights."""

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import amprewrite
from amprewrite.errors import UnsupportedError


class Tied(nn.Module):
    """An embedding that is the last layer too, and batch statistics in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hidden(self.norm(self.table(ids))).relu())


IDS = torch.tensor([1, 3, 7])


def with_args(model: nn.Module, **options: Any) -> Any:
    return amprewrite.convert(model, args=(IDS,), **options)


def at_the_first_call(model: nn.Module, **options: Any) -> Any:
    converted = amprewrite.convert(model, **options)
    converted(IDS)
    return converted


WAYS = pytest.mark.parametrize("way", [with_args, at_the_first_call])


def doubled(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    return {k: 2 * v if v.is_floating_point() else v for k, v in state.items()}


@WAYS
def test_full_weights_come_back_as_they_were(way: Any) -> None:
    model = Tied().eval()
    plain = amprewrite.original(way(model, policy="fp32"))
    assert type(plain) is Tied
    assert plain is not model
    assert torch.equal(plain(IDS), model(IDS))
    assert plain.head.weight is plain.table.weight
    assert not plain.training
    assert plain.state_dict().keys() == model.state_dict().keys()


def test_low_weights_come_back_rounded_in_the_dtypes_of_the_model() -> None:
    model = Tied().eval()
    converted = with_args(model)
    assert converted.hidden.weight.dtype == torch.bfloat16
    plain = amprewrite.original(converted)
    assert {p.dtype for p in plain.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in plain.parameters())
    assert torch.equal(plain.hidden.weight, model.hidden.weight.bfloat16().float())
    assert plain.head.weight is plain.table.weight
    difference = (plain(IDS) - model(IDS)).norm() / model(IDS).norm()
    assert 0 < difference < 0.02


@WAYS
def test_what_was_loaded_comes_back(way: Any) -> None:
    model = Tied().eval()
    converted = way(model, policy="fp32")
    state = doubled(model)
    converted.load_state_dict(state)
    plain = amprewrite.original(converted)
    model.load_state_dict(state)
    assert torch.equal(plain(IDS), model(IDS))


def test_the_plain_model_is_independent_of_the_converted_one() -> None:
    converted = with_args(Tied().eval(), policy="fp32")
    expected = converted(IDS)
    plain = amprewrite.original(converted)
    with torch.no_grad():
        for held in (*plain.parameters(), plain.norm.running_mean):
            held.add_(1)
    assert torch.equal(converted(IDS), expected)
    again = amprewrite.original(converted)
    assert torch.equal(again(IDS), expected)


@WAYS
def test_training_gives_the_model_itself_in_the_mode_of_the_converted(way: Any) -> None:
    model = Tied()
    converted = way(model)
    assert amprewrite.original(converted) is model
    converted.eval()
    assert not amprewrite.original(converted).training


def test_parameters_that_were_replaced_in_training_are_shared() -> None:
    model = Tied()
    converted = with_args(model)
    converted.hidden.bias = nn.Parameter(torch.ones(8))
    plain = amprewrite.original(converted)
    assert plain is not model
    assert plain.hidden.bias is converted.hidden.bias
    assert plain.head.weight is plain.table.weight is model.table.weight
    assert model.hidden.bias is not converted.hidden.bias


@pytest.mark.parametrize("training", [False, True])
def test_a_deep_copy_has_a_plain_model_of_its_own(training: bool) -> None:  # noqa: FBT001  # a case
    model = Tied().train(training)
    converted = with_args(model, policy="fp32")
    twin = copy.deepcopy(converted)
    with torch.no_grad():
        twin.hidden.bias.add_(1)
    plain, first = amprewrite.original(twin), amprewrite.original(converted)
    assert torch.equal(plain.hidden.bias, first.hidden.bias + 1)
    assert (plain.hidden.bias is twin.hidden.bias) == training
    assert torch.equal(first.hidden.bias, model.hidden.bias)


def test_a_pickled_module_comes_back_in_the_dtypes_of_the_model() -> None:
    converted = with_args(Tied().eval())
    loaded = pickle.loads(pickle.dumps(converted))  # ours
    plain, expected = amprewrite.original(loaded), amprewrite.original(converted)
    assert type(plain) is Tied
    assert plain.state_dict().keys() == expected.state_dict().keys()
    for name, held in expected.state_dict().items():
        assert plain.state_dict()[name].dtype == held.dtype
        assert torch.equal(plain.state_dict()[name], held)


def test_a_pickled_program_has_no_way_back_and_says_so() -> None:
    program = torch.export.export(Tied().eval(), (IDS,))
    converted = pickle.loads(pickle.dumps(amprewrite.convert(program)))  # ours
    with pytest.raises(UnsupportedError, match=r"loaded from a pickle.*load_state"):
        amprewrite.original(converted)


def test_the_weights_of_the_model_are_not_kept() -> None:
    model = Tied().eval()
    converted = with_args(model)
    held = [weakref.ref(t) for t in (*model.parameters(), *model.buffers())]
    del model
    gc.collect()
    assert not [reference for reference in held if reference() is not None]
    assert type(amprewrite.original(converted)) is Tied


def test_recurrent_layers_run_on_the_new_weights() -> None:
    """They keep a list of their parameters beside them."""
    model, x = nn.LSTM(4, 4).eval(), torch.randn(3, 4)
    converted = amprewrite.convert(model, "fp32", args=(x,))
    state = doubled(model)
    converted.load_state_dict(state)
    plain = amprewrite.original(converted)
    model.load_state_dict(state)
    assert torch.equal(plain(x)[0], model(x)[0])


class Viewed(nn.Module):
    """Some rows of a weight under a plain name."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(4, 6, bias=False)
        self.rows = self.whole.weight.detach()[2:4]

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)[..., :2] + nn.functional.linear(x, self.rows)


def test_a_view_of_a_weight_is_one_of_the_new_weight() -> None:
    model, x = Viewed().eval(), torch.randn(3, 4)
    converted = amprewrite.convert(model, "fp32", args=(x,))
    converted.load_state_dict(doubled(model))
    plain = amprewrite.original(converted)
    assert torch.equal(plain(x), 2 * model(x))


class Closed(nn.Module):
    """A function that refers to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)
        self.run = lambda x: self.part(x).relu()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class Locked(nn.Linear):
    """What copy.deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lock = threading.Lock()


def test_a_model_without_a_copy_is_refused_when_it_is_asked_for() -> None:
    converted = amprewrite.convert(Closed().eval(), args=(torch.ones(2, 4),))
    with pytest.raises(UnsupportedError, match="run of Closed is a function"):
        amprewrite.original(converted)
    with pytest.raises(UnsupportedError, match="run of Closed is a function"):
        converted(torch.ones(3, 4))  # another program is captured of a copy
    trained = amprewrite.convert(Closed().train(), args=(torch.ones(2, 4),))
    assert trained.eval()(torch.ones(3, 4)).shape == (3, 4)


def test_attributes_that_cannot_be_copied_are_shared() -> None:
    model = Locked().eval()
    converted = amprewrite.convert(model, args=(torch.ones(2, 4),))
    assert converted.lock is model.lock
    assert converted(torch.ones(3, 4)).shape == (3, 4)
    assert amprewrite.original(converted).lock is model.lock


@pytest.mark.parametrize("opened", [False, True])
def test_a_captured_program_comes_back_as_its_module(opened: bool) -> None:  # noqa: FBT001  # a case
    model = Tied().eval()
    program = torch.export.export(model, (IDS,))
    given = program.module() if opened else program
    converted = amprewrite.convert(given, "fp32", args=(IDS,), training=False)
    plain = amprewrite.original(converted)
    assert isinstance(plain, torch.fx.GraphModule)
    assert torch.equal(plain(IDS), model(IDS))


def test_a_graph_module_is_not_changed_and_runs_with_its_guards() -> None:
    model = Tied().eval()
    given: Any = torch.export.export(model, (IDS,)).module()
    code = [node.format_node() for node in given.graph.nodes]
    converted = amprewrite.convert(given, args=(IDS,))
    assert [node.format_node() for node in given.graph.nodes] == code
    assert converted.plan.casts
    assert converted(IDS).shape == (3, 12)


def test_what_is_not_converted_is_returned_as_it_is() -> None:
    model = Tied()
    assert amprewrite.original(model) is model


def test_parts_and_wrappers_are_refused() -> None:
    converted = with_args(Tied().eval())
    with pytest.raises(UnsupportedError, match="part of a converted module"):
        amprewrite.original(converted.hidden)
    with pytest.raises(UnsupportedError, match="holds a converted module, 0;"):
        amprewrite.original(nn.Sequential(converted))


def test_what_was_replaced_in_the_converted_model_is_replaced_in_the_plain() -> None:
    converted = with_args(Tied().eval())
    converted.hidden.bias = None
    plain = amprewrite.original(converted)
    assert plain.hidden.bias is None
    assert plain(IDS).shape == converted(IDS).shape
