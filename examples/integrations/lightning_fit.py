"""Train a LightningModule by Lightning's Trainer, converted by a precision plugin."""

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from amprewrite.integrations.lightning import AmpRewritePrecision


class Classifier(lightning.LightningModule):
    """A small network, as any LightningModule is written."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4)
        )
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, f32[batch, 4]."""
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    """Train, and print what was decided and the losses."""
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(512, 16)
    data = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=64)
    plugin = AmpRewritePrecision("bf16")
    trainer = lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        plugins=[plugin],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, data)

    print(plugin.plans[0].summary())
    print(f"loss {model.losses[0]:.3f} -> {model.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
