"""Keywords that reach ``**kwargs`` have a place in the signature during an export."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.capture.export import export_model, keywords_named

X, MASK = torch.ones(2, 3), torch.ones(3)


class Model(nn.Module):
    def forward(self, x: Tensor, /, y: Any = None, **rest: Any) -> Any:
        return x, y, rest


def parameters(model: nn.Module) -> list[str]:
    return [*inspect.signature(model.forward).parameters]


def test_a_keyword_has_a_parameter_in_the_context() -> None:
    model, kwargs = Model(), {"mask": MASK, "twice": True}
    with keywords_named(model, (X,), kwargs, None) as shapes:
        assert parameters(model) == ["x", "y", "mask", "twice", "rest"]
        assert model(X, **kwargs) == (X, None, kwargs)
        assert shapes is None
    assert parameters(model) == ["x", "y", "rest"]
    assert "forward" not in vars(model)


def test_a_forward_on_the_object_is_called_and_put_back() -> None:
    model = Model()
    own: Any = lambda x, **rest: (x, rest)  # noqa: E731
    model.forward = own
    with keywords_named(model, (X,), {"twice": True}, None):
        assert parameters(model) == ["x", "twice", "rest"]
        assert model(X, twice=True) == (X, {"twice": True})
    assert model.forward is own


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X,), {}),
        ((X,), {"y": X}),
        ((X,), {"x": X}),  # beside the positional parameter of that name
        ((X,), {"no name": X}),
        ((X,), {"lambda": X}),
        ((), {"mask": X}),  # a wrong call, which export refuses
    ],
)
def test_a_forward_stays_as_it_is(args: Any, kwargs: Any) -> None:
    model, wish = Model(), object()
    with keywords_named(model, args, kwargs, wish) as shapes:
        assert "forward" not in vars(model)
        assert shapes is wish


@pytest.mark.parametrize(
    "wish",
    [
        {"x": {0: 1}, "rest": {"mask": {0: 2}, "twice": None}},
        ({0: 1}, {"mask": {0: 2}, "twice": None}),
        {"x": {0: 1}, "mask": {0: 2}, "twice": None},
    ],
)
def test_shapes_are_beside_the_others(wish: Any) -> None:
    with keywords_named(Model(), (X,), {"mask": MASK, "twice": True}, wish) as shapes:
        assert shapes == {"x": {0: 1}, "mask": {0: 2}, "twice": None}


@pytest.mark.parametrize("wish", [({0: 1},), {"x": {0: 1}}, {"x": None, "rest": None}])
def test_a_mistake_is_left_to_export(wish: Any) -> None:
    with keywords_named(Model(), (X,), {"mask": MASK}, wish) as shapes:
        assert shapes is wish


class Added(nn.Module):
    def forward(self, x: Tensor, **rest: Any) -> Any:
        return x + rest["mask"]


def test_inputs_have_the_same_names_with_fixed_and_with_varying_extents() -> None:
    given = (X,), {"mask": MASK}
    rows = {"x": {0: torch.export.Dim.AUTO}, "rest": {"mask": None}}
    captured = (export_model(Added(), *given, shapes) for shapes in (None, rows))
    fixed, varying = (c.module.graph.find_nodes(op="placeholder") for c in captured)
    assert [n.name for n in fixed] == [n.name for n in varying] == ["x", "mask"]
