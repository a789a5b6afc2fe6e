"""Train a vision transformer on handwritten digits with the Trainer of transformers."""

import tempfile
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import amprewrite
from amprewrite.integrations.transformers import PlanCallback

TEST = 300
"""Number of digits to test on."""


def digits() -> list[dict[str, Any]]:
    """Return the digits as the Trainer takes them."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(np.reshape(pixels, (-1, 1, 8, 8))).float() / 8 - 1
    return [
        {"pixel_values": image, "labels": int(label)}
        for image, label in zip(images, labels, strict=True)
    ]


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """Return the share of labels that were found."""
    best = np.asarray(found.predictions).argmax(-1)
    return {"accuracy": float((best == found.label_ids).mean())}


def main() -> None:
    """Train, evaluate, save, and load the plain model."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    config.num_labels = 10
    model = ViTForImageClassification(config).train()
    rows: Any = digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=amprewrite.convert(model),  # shares the parameters of the model
            args=TrainingArguments(
                output_dir=folder,
                max_steps=200,
                per_device_train_batch_size=32,
                per_device_eval_batch_size=TEST,
                learning_rate=2e-3,
                logging_steps=50,
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=rows[:-TEST],
            eval_dataset=rows[-TEST:],
            compute_metrics=accuracy,
            callbacks=[PlanCallback()],
        )
        trainer.train()
        found = trainer.evaluate()
        trainer.save_model(folder)
        loaded = ViTForImageClassification.from_pretrained(folder)
    print(f"accuracy {found['eval_accuracy']:.3f}")
    print(f"loaded a {type(loaded).__name__} in {loaded.dtype}")


if __name__ == "__main__":
    main()
