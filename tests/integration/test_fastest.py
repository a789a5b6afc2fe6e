"""Placement ``fastest`` of torch models: timed on the arguments, and remembered."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import amprewrite
from amprewrite.errors import ToleranceError, UnsupportedError
from amprewrite.frameworks.torch_fx.probes import tolerance as timing

pytestmark = pytest.mark.filterwarnings("ignore:rewritten 0 of")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "SECONDS", 0.05)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).eval()


X = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))


def by_the_clock(monkeypatch: pytest.MonkeyPatch, sign: int) -> list[set[str]]:
    """Time plans by the number of casts of their programs, not by a clock."""
    asked: list[set[str]] = []

    def medians(models: Any, *_: Any, **__: Any) -> dict[str, float]:
        asked.append(set(models))
        lowered = {name: len(m.plan.lowered) for name, m in models.items()}
        return {name: 100.0 + sign * count for name, count in lowered.items()}

    where = "amprewrite.frameworks.torch_fx.probes.tolerance.seconds_of"
    monkeypatch.setattr(where, medians)
    return asked


@pytest.mark.parametrize("training", [False, True])
def test_a_timed_plan_runs_and_keeps_the_tolerance(*, training: bool) -> None:
    plain = model()
    converted = amprewrite.convert(
        plain, args=(X,), placement="fastest", tolerance=1e-2, training=training
    )
    plan = converted.plan
    assert plan.placement == "fastest"
    assert plan.timed[0].seconds <= min(t.seconds for t in plan.timed if t.name)
    assert "full" in {one.name for one in plan.timed}
    with torch.no_grad():
        made, wanted = converted(X), plain(X)
    assert (made - wanted).norm() <= 1e-2 * wanted.norm()


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_fastest_is_what_the_clock_says(
    sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = by_the_clock(monkeypatch, sign)
    plan = amprewrite.inspect(model(), args=(X,), placement="fastest")
    assert bool(plan.lowered) == (sign < 0)
    assert "full" in asked[0]
    assert plan.tolerance is not None  # that of torch.autocast


def test_a_program_is_timed_once_and_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = by_the_clock(monkeypatch, -1)
    first = amprewrite.convert(model(), args=(X,), placement="fastest")
    again = amprewrite.convert(model(), args=(X,), placement="fastest")
    assert len(asked) == 1
    assert again.plan.timed == first.plan.timed
    assert torch.equal(again(X), first(X))
    amprewrite.convert(model(), args=(X[:8],), placement="fastest")
    amprewrite.convert(model(), args=(X,), placement="fastest", lowering=False)
    assert len(asked) == 3


def test_a_remembered_plan_that_breaks_the_tolerance_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = by_the_clock(monkeypatch, -1)
    own = {"placement": "fastest", "tolerance": 4e-3}
    assert amprewrite.inspect(model(), args=(X,), **own).lowered
    harder = model()
    first, last = harder.get_submodule("0"), harder.get_submodule("2")
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():  # sums that cancel
        first.weight[128:] = first.weight[:128] * 1.01
        first.bias[128:] = first.bias[:128]
        last.weight[:, 128:] = -last.weight[:, :128]
        last.bias.zero_()
        found = amprewrite.convert(harder, args=(X,), **own)
        wanted = harder(X)
        assert (found(X) - wanted).norm() <= 4e-3 * wanted.norm()
    assert len(asked) == 2


def test_a_full_device_leaves_the_plan_by_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    where = "amprewrite.frameworks.torch_fx.probes.tolerance.seconds_of"
    monkeypatch.setattr(where, fails)
    with pytest.warns(amprewrite.errors.AmpWarning, match="out of memory while plans"):
        converted = amprewrite.convert(model(), args=(X,), placement="fastest")
    assert converted.plan.lowered
    assert not converted.plan.timed


def test_a_plan_that_was_timed_is_saved_and_applied(tmp_path: Path) -> None:
    plan = amprewrite.inspect(model(), args=(X,), placement="fastest")
    plan.save(tmp_path / "plan.json")
    again = amprewrite.Plan.load(tmp_path / "plan.json")
    assert again == plan
    converted = amprewrite.convert(model(), args=(X,), plan=again)
    assert converted.plan.timed == plan.timed
    converted(X[:4])  # another program is planned by prices


def test_what_cannot_be_timed_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedError, match="'fastest' needs args=, the arguments"):
        amprewrite.convert(model(), placement="fastest")
    with pytest.raises(UnsupportedError, match=r"where the model is.*want device=None"):
        amprewrite.convert(model(), args=(X,), placement="fastest", device="cuda")
    with pytest.raises(ToleranceError, match="want a relative error above 0"):
        amprewrite.convert(model(), args=(X,), placement="fastest", tolerance=-1)
    with pytest.raises(UnsupportedError, match="promote, paint, optimal, fastest"):
        amprewrite.convert(model(), args=(X,), placement="fast")


def test_a_model_that_autocast_fails_on_is_bound_by_promote() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("not under autocast")
            return self.linear(x)

    x = torch.randn(8, 64)
    plan = amprewrite.inspect(Strict().eval(), args=(x,), placement="fastest")
    assert plan.timed
    with pytest.raises(ToleranceError, match=r"does not run under torch\.autocast"):
        amprewrite.inspect(
            Strict().eval(), args=(x,), placement="fastest", tolerance="autocast"
        )
