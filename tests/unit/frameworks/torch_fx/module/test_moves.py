"""Moves of a converted module."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import UnsupportedError
from amprewrite.frameworks.torch_fx.module.moves import KeepsDtypes, refuse_other_dtypes


def converted(**given: Any) -> tuple[Any, Any, Any]:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    return model, amprewrite.convert(model, args=(x,), **given), x


def test_a_dtype_that_is_there_already_is_no_move() -> None:
    module = KeepsDtypes()
    module.register_buffer("b", torch.ones(2))
    assert module.float().b.dtype == torch.float32
    with pytest.raises(UnsupportedError, match="cast from float32 to bfloat16"):
        module.bfloat16()
    refuse_other_dtypes(nn.Linear(2, 2), lambda tensor: tensor)


@pytest.mark.parametrize("training", [False, True])
def test_devices_formats_and_memory_may_change(*, training: bool) -> None:
    model, program, x = converted(training=training)
    expected = program(x)
    assert torch.equal(program.to("cpu")(x), expected)
    moved = program.to(memory_format=torch.channels_last)
    torch.testing.assert_close(moved(x), expected)
    assert all(tensor.is_shared() for tensor in program.share_memory().parameters())
    dtypes = [tensor.dtype for tensor in program.state_dict().values()]
    empty = program.to_empty(device="meta")
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    assert [tensor.dtype for tensor in empty.state_dict().values()] == dtypes
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_a_part_is_refused_too() -> None:
    model, program, _ = converted(training=True)
    with pytest.raises(UnsupportedError, match="convert the original in that dtype"):
        program.get_submodule("0").half()
    assert model[0].weight.dtype == torch.float32


class Metric(nn.Module):
    """A module whose moves take other arguments than those of ``nn.Module``."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[tuple[str, ...]] = []

    def _apply(  # pyright: ignore[reportIncompatibleMethodOverride]  # as torchmetrics
        self, fn: Any, exclude: tuple[str, ...] = ()
    ) -> Any:
        self.moves.append(tuple(exclude))
        return super()._apply(fn)


def test_a_part_is_moved_with_the_arguments_of_its_own_class() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Metric()).eval()
    converted = amprewrite.convert(model)
    assert converted.to("cpu") is converted
    assert converted[1].moves == [()]
