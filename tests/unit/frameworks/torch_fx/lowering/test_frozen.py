"""Functions with constant weights."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from amprewrite.frameworks.torch_fx.lowering.frozen import MOST_FREEZES, Frozen


def test_a_change_freezes_again_until_it_is_too_often() -> None:
    weight = torch.ones(2)
    made: list[Any] = []

    def make() -> Any:
        constant = weight.clone()
        made.append(constant)
        return lambda: constant

    frozen = Frozen(make, lambda: weight)
    for number in range(MOST_FREEZES + 2):
        for _ in range(2):
            assert torch.equal(frozen.of([weight])(), weight)
        assert len(made) == min(number + 1, MOST_FREEZES) == frozen.freezes
        weight.mul_(2)


def test_another_tensor_or_another_memory_is_a_change() -> None:
    one, two = torch.zeros(2), torch.zeros(2)
    frozen = Frozen(lambda: lambda: 0, lambda: 0)
    frozen.of([one])
    frozen.of([two])
    assert frozen.freezes == 2
    two.data = torch.ones(2)
    frozen.of([two])
    assert frozen.freezes == 3


def test_a_write_that_torch_does_not_count_is_a_change() -> None:
    weight = torch.ones(40, 30)
    frozen = Frozen(lambda: lambda: 0, lambda: 0)
    frozen.of([weight])
    weight.data.mul_(2)
    frozen.of([weight])
    assert frozen.freezes == 2


def test_weights_of_another_device_are_not_frozen() -> None:
    frozen = Frozen(lambda: lambda: "frozen", lambda: "unfrozen")
    assert frozen.of([torch.ones(2, device="meta")])() == "unfrozen"
    assert frozen.freezes == 0


def test_another_tensor_to_write_to_is_a_change_and_a_write_is_none() -> None:
    weight, one, two = torch.ones(2), torch.zeros(2), torch.zeros(2)
    frozen = Frozen(lambda: lambda: 0, lambda: 0)
    for _ in range(3):
        frozen.of([weight], [one])
        one.add_(1)
    assert frozen.freezes == 1
    frozen.of([weight], [two])
    assert frozen.freezes == 2
    two.data = torch.zeros(3)
    frozen.of([weight], [two])
    assert frozen.freezes == 3
