"""In segments the effects of roundings are the same, in less memory."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from amprewrite.frameworks.torch_fx.capture.one_graph import capture
from amprewrite.frameworks.torch_fx.probes import segments
from amprewrite.frameworks.torch_fx.probes.sensitivity import measure_sensitivity
from amprewrite.frameworks.torch_fx.rewrite.read import read
from amprewrite.passes.error_budget.budget import find_probes
from amprewrite.policy import Matcher, load_policy
from tests.integration.test_verify_cost import peak


class Function(nn.Module):
    """A function of a few layers."""

    def __init__(self, run: Any, width: int) -> None:
        super().__init__()
        self.run = run
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def residual(m: Any, x: Any) -> Any:
    """Values that pass several cuts, parts of one value, two outputs."""
    first = torch.tanh(m.layers[0](x))
    for layer in m.layers:
        one, two = layer(m.norm(x)).chunk(2, -1)
        x = x + torch.cat((two.relu(), one * first.mean()), -1)
    return x, first.sum(-1)


def switched(m: Any, x: Any) -> Any:
    """A body that runs in place, and a value that gradients do not pass."""
    for layer in m.layers:
        with torch.no_grad():
            y = torch.tanh(layer(x))
        x = y + x.detach()
    return x


def dropped(m: Any, x: Any) -> Any:
    for layer in m.layers:
        x = nn.functional.dropout(layer(x), 0.5)
    return x


def written(m: Any, x: Any) -> Any:
    for layer in m.layers:
        x = layer(x).mul_(2)
    return x


def program(run: Any, width: int = 32, rows: int = 64) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model, x = Function(run, width).eval(), torch.randn(rows, width)
    with torch.no_grad():
        reading = read(capture(model, (x,), None).module)
    probes = find_probes(
        reading.graph, Matcher(load_policy("bf16")), keep_parameter_dtype=False
    )
    return reading, probes, x


def measured(reading: Any, probes: Any, x: Any) -> Any:
    return measure_sensitivity(
        reading, probes, [x], lambda found: dict.fromkeys(found, 1.0)
    )


def count(reading: Any, probes: Any) -> int:
    found = segments.segments_of(reading, probes, lambda: None)  # pyright: ignore[reportArgumentType]
    return 1 if found is None else len(found.parts)


@pytest.mark.parametrize("run", [residual, switched])
def test_the_effects_are_the_same_in_segments(run: Any, monkeypatch: Any) -> None:
    given = program(run)
    monkeypatch.setattr(segments, "SHARE", 1e9)
    assert count(*given[:2]) == 1
    whole = measured(*given)
    monkeypatch.setattr(segments, "SHARE", 0.0)
    assert count(*given[:2]) > 2
    parts = measured(*given)
    assert whole.moves.keys() == parts.moves.keys()
    for key, moves in whole.moves.items():
        assert parts.moves[key] == pytest.approx(moves, rel=1e-4, abs=1e-9)
    assert sum(map(any, whole.moves.values())) > len(whole.moves) / 2


def test_what_writes_or_draws_is_not_cut(monkeypatch: Any) -> None:
    monkeypatch.setattr(segments, "SHARE", 0.0)
    assert count(*program(written)[:2]) == 1
    reading, probes, _ = program(lambda m, x: dropped(m.train(), x))
    assert count(reading, probes) == 1


def test_fewer_bytes_are_alive_in_segments(monkeypatch: Any) -> None:
    def deep(m: Any, x: Any) -> Any:
        for _ in range(4):
            for layer in m.layers:
                x = nn.functional.gelu(layer(x))
        return x

    given = program(deep, 64, 4096)
    found = peak(lambda: measured(*given))
    monkeypatch.setattr(segments, "SHARE", 1e9)
    assert found < 0.4 * peak(lambda: measured(*given))
