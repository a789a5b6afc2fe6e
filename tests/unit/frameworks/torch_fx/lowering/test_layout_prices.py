"""Which float32 convolutions pay for the copies around them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from amprewrite.frameworks.torch_fx.lowering import channels_last
from amprewrite.frameworks.torch_fx.lowering.channels_last import paying
from tests.torch_programs import Program


@pytest.fixture(autouse=True)
def _such_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "_is_measured", lambda: True)


def chosen(
    forward: Callable[..., Any], size: int = 28, width: int = 128, **layers: Any
) -> list[str]:
    """Return the convolutions chosen of a program, on an image of that size."""
    parts = {name: layer() for name, layer in layers.items()}
    model, given = Program(forward, **parts).eval(), torch.empty(1, width, size, size)
    graph = torch.export.export(model, (given,)).module().graph
    return sorted(paying(graph, torch.float32.__eq__))


def wide() -> Any:
    return nn.Conv2d(128, 128, 3, padding=1)


def test_a_chain_pays_for_its_copies_and_one_alone_does_not() -> None:
    assert chosen(lambda m, x: m.a(x), a=wide) == []
    assert chosen(lambda m, x: m.b(m.a(x).relu()).relu(), a=wide, b=wide) == [
        "conv2d",
        "conv2d_1",
    ]


def test_norms_of_groups_and_joined_images_keep_the_layout() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = nn.functional.silu(m.n(m.a(x)))
        return m.c(torch.cat((m.b(y), y), 1))

    layers = {"a": wide, "b": wide, "n": lambda: nn.GroupNorm(8, 128)}
    layers["c"] = lambda: nn.Conv2d(256, 128, 3, padding=1)
    assert len(chosen(forward, **layers)) == 3


def test_networks_are_priced_apart() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        long = m.b(m.a(x).relu()).relu()
        return m.c(long.flatten(1).softmax(-1).view_as(x))  # alone

    assert chosen(forward, a=wide, b=wide, c=wide) == ["conv2d", "conv2d_1"]


def test_small_images_do_not_pay_for_the_calls() -> None:
    found = chosen(lambda m, x: m.b(m.a(x).relu()), size=4, a=wide, b=wide)
    assert found == []


@pytest.mark.parametrize(("inputs", "gains"), [(4, False), (8, True)])
def test_images_of_few_channels_gain_nothing(inputs: int, *, gains: bool) -> None:
    layer = nn.Conv2d(inputs, 128, 31, padding=15)
    found = chosen(lambda m, x: m.a(x), width=inputs, a=lambda: layer)
    assert bool(found) is gains


def test_a_pooling_of_maxima_pays_for_a_convolution() -> None:
    pool = nn.functional.max_pool2d
    assert chosen(lambda m, x: pool(m.a(x), 3, 2, 1), a=wide) == ["conv2d"]


@pytest.mark.parametrize(("size", "gains"), [(3, True), (5, False)])
def test_single_channels_gain_in_small_windows(size: int, *, gains: bool) -> None:
    def alone() -> Any:
        return nn.Conv2d(128, 128, size, padding=size // 2, groups=128)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.d(m.c(m.b(m.a(x)).relu()))

    found = chosen(forward, a=wide, b=wide, c=alone, d=wide)
    assert found == ["conv2d", "conv2d_1"] + ["conv2d_2", "conv2d_3"] * gains
