"""Lightning's Trainer with converted modules, and with the precision plugin."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import amprewrite
from amprewrite.integrations.lightning import AmpRewritePrecision

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Digits(lightning.LightningModule):
    """A small classifier with batch norm, whose steps call it or a part of it."""

    def __init__(self, width: int = 16, *, by_part: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)
        )
        self.losses: list[float] = []
        self.by_part = by_part
        self.seen: set[str] = set()
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return self.net(x) * self.scale

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        found = self.net(x) * self.scale if self.by_part else self(x)
        self.seen.add(f"{type(self).__qualname__} {found.dtype}")
        loss = functional.cross_entropy(found, y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("loss", functional.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch: Any) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data() -> Any:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=24)


def trainer(plugin: Any = None, **options: Any) -> Any:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar")
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        plugins=plugin,
        enable_model_summary=False,
        **dict.fromkeys(quiet, False),
        **options,
    )


def module(**options: Any) -> Any:
    torch.manual_seed(0)
    return Digits(**options)


@pytest.fixture(scope="module")
def full() -> Any:
    """Give the module after a run in float32."""
    made = module()
    trainer().fit(made, data())
    return made


@pytest.fixture(scope="module")
def autocast() -> Any:
    """Give the module after a run of Lightning's own mixed precision."""
    made = module()
    trainer(precision="bf16-mixed").fit(made, data())
    return made


def worst(found: Any, expected: Any) -> float:
    assert len(found.losses) == len(expected.losses) == 6
    pairs = zip(found.losses, expected.losses, strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("by_part", [False, True])
def test_the_plugin_trains(by_part: Any, full: Any, autocast: Any) -> None:
    made = module(by_part=by_part)
    plugin = AmpRewritePrecision("bf16")
    trainer(plugin).fit(made, data(), data())
    assert 0 < worst(made, full) <= 1.5 * worst(autocast, full) + 1e-4
    assert made.seen == {"ConvertedDigits torch.float32"}
    assert type(made) is Digits
    assert type(made.net[0]) is nn.Linear
    assert len(plugin.plans) == 4  # of each mode, and again as the last batch differs
    for plan in plugin.plans:
        linears = [d for d in plan.decisions if d.canonical == "linear"]
        assert [d.precision for d in linears] == ["bfloat16"] * 2
    assert {p.dtype for p in made.parameters()} == {torch.float32}
    norm: Any = made.net[1]
    assert int(norm.num_batches_tracked) == 6


def test_attributes_that_a_callback_changes_are_read() -> None:
    class Halve(lightning.Callback):
        def on_train_epoch_start(self, _: Any, pl_module: Any) -> None:
            pl_module.scale = 0.0 if pl_module.current_epoch else 1.0

    made = module()
    trainer(AmpRewritePrecision(), callbacks=[Halve()]).fit(made, data())
    assert made.losses[0] != pytest.approx(math.log(3), abs=1e-3)
    assert made.losses[3:] == pytest.approx([math.log(3)] * 3, abs=1e-6)


def test_predictions_and_checkpoints(tmp_path: Path) -> None:
    made = module()
    plugin = AmpRewritePrecision("bf16", overrides=[{"path": "net.0", "class": "deny"}])
    run = trainer(plugin)
    run.fit(made, data())
    run.save_checkpoint(tmp_path / "last.ckpt")
    found = torch.cat(run.predict(made, data()))
    linears = [d for d in plugin.plans[0].decisions if d.canonical == "linear"]
    assert [d.precision for d in linears] == ["float32", "bfloat16"]
    loaded = Digits.load_from_checkpoint(tmp_path / "last.ckpt").eval()
    x = torch.cat([x for x, _ in data()])
    expected = loaded(x)
    assert 1e-4 < (found - expected).norm() / expected.norm() < 1e-2


def test_float16_scales_the_loss_and_skips_steps(tmp_path: Path, full: Any) -> None:
    plugin: Any = AmpRewritePrecision("fp16")
    plugin.scaler.load_state_dict({**plugin.scaler.state_dict(), "scale": 2.0**40})
    made = module()
    norms: list[float] = []

    class Norms(lightning.Callback):
        def on_before_optimizer_step(self, _: Any, pl_module: Any, __: Any) -> None:
            held = [p.grad.norm() for p in pl_module.parameters()]
            norms.append(float(torch.stack(held).norm()))

    run = trainer(plugin, callbacks=[Norms()], gradient_clip_val=100.0)
    run.fit(made, data())
    run.save_checkpoint(tmp_path / "last.ckpt")
    assert math.isinf(norms[0]) or math.isnan(norms[0])
    assert made.losses[0] == pytest.approx(full.losses[0], rel=1e-2)
    state = plugin.scaler.state_dict()
    assert state["scale"] == 2.0 ** (40 - sum(not math.isfinite(n) for n in norms))
    other: Any = AmpRewritePrecision("fp16")
    again = trainer(other)
    again.fit_loop.max_epochs = 3
    again.fit(module(), data(), ckpt_path=tmp_path / "last.ckpt")
    assert other.scaler.state_dict()["scale"] <= state["scale"]


class Descent(Digits):
    """Trained by steps as long as the gradients, which those of AdamW are not."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def test_float16_unscales_before_it_clips() -> None:
    runs: list[Any] = []
    for plugin in (None, AmpRewritePrecision("fp16")):
        torch.manual_seed(0)
        made = Descent()
        trainer(plugin, gradient_clip_val=100.0).fit(made, data())
        runs.append(made)
    assert worst(*runs) < 5e-3  # scaled gradients would all be clipped
    assert runs[0].losses[0] - runs[0].losses[-1] > 0.1


@pytest.mark.slow
def test_a_module_that_was_converted_trains(full: Any, autocast: Any) -> None:
    converted = amprewrite.convert(module())
    trainer().fit(converted, data())
    assert 0 < worst(converted, full) <= 1.5 * worst(autocast, full) + 1e-4
    assert isinstance(converted, Digits)
    copied = copy.deepcopy(amprewrite.original(converted)).eval()
    x = torch.cat([x for x, _ in data()])
    with torch.no_grad():
        found, expected = converted.eval()(x), copied(x)
    assert (found - expected).norm() < 1e-2 * expected.norm()
