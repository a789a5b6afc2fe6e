"""Extents that vary between the calls of a model."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.programs.calls import Extents

AUTO = torch.export.Dim.AUTO


class Model(nn.Module):
    def forward(self, x: Tensor, y: Any = None, **rest: Any) -> Any:
        """Only the signature is read."""


MODEL = Model()


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def noted(*calls: Any, **kwargs: Any) -> Any:
    """Return the extents that vary at the last of several calls."""
    extents = Extents()
    return [extents.note(MODEL, args, kwargs) for args in calls][-1]


def test_the_first_capture_is_static() -> None:
    assert noted((zeros(2, 3),)) is None
    assert noted((zeros(2, 3),), (zeros(2, 3),)) is None
    assert noted((1,), (2,)) is None


def test_an_extent_that_has_another_value_varies() -> None:
    found = noted((zeros(2, 3),), (zeros(5, 3),))
    assert found["x"] == {0: AUTO}
    both = noted((zeros(2, 3),), (zeros(5, 3),), (zeros(5, 4),))
    assert both["x"] == {0: AUTO, 1: AUTO}, "an extent that varied once varies on"
    back = noted((zeros(2, 3),), (zeros(5, 3),), (zeros(2, 3),))
    assert back["x"] == {0: AUTO}


def test_extents_of_equal_value_vary_together() -> None:
    found = noted((zeros(2, 7), zeros(2)), (zeros(5, 7), zeros(5)))
    assert found["x"] == {0: AUTO}
    assert found["y"] == {0: AUTO}
    found = noted((zeros(2, 7),), (zeros(5, 7), zeros(5, 6)))
    assert found["x"] == {0: AUTO}
    assert found["y"] == {0: AUTO}, "although it is new"


@pytest.mark.parametrize("extent", [0, 1])
def test_extents_of_zero_and_one_say_nothing_of_others(extent: int) -> None:
    calls = (zeros(2, extent),), (zeros(extent, extent),)
    assert noted(*calls)["x"] == {0: AUTO}


def test_tensors_inside_arguments_have_their_paths() -> None:
    def call(rows: int) -> Any:
        return zeros(4, 3), {"a": [zeros(3, 3), zeros(rows, 3)]}

    found = noted(call(2), call(5))
    assert found["y"] == {"a": [None, {0: AUTO}]}
    assert found["x"] is None


def test_an_argument_is_the_same_by_position_and_by_name() -> None:
    extents = Extents()
    assert extents.note(MODEL, (zeros(2),), {}) is None
    found = extents.note(MODEL, (), {"x": zeros(3), "other": zeros(3)})
    assert found["x"] == {0: AUTO}
    assert found["rest"]["other"] == {0: AUTO}


def test_what_is_returned_is_taken_by_export() -> None:
    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    extents, model = Extents(), Doubles()
    extents.note(model, (zeros(2, 3),), {})
    shapes = extents.note(model, (zeros(5, 3),), {})
    program = torch.export.export(model, (zeros(5, 3),), dynamic_shapes=shapes)
    assert program.module()(zeros(9, 3)).shape == (9, 3)
