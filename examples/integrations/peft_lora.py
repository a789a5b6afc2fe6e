"""Train LoRA adapters on a converted transformer, save them, and load them again."""

import tempfile
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import amprewrite

CONFIG = BertConfig(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ANIMAL = 7
"""The token to be found."""


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts of eight random tokens, and whether they have an animal."""
    ids = torch.randint(4, 20, (size, 8))
    return ids, (ids == ANIMAL).any(1).long()


def main() -> None:
    """Train adapters, and compare the merged plain model with the trained one."""
    torch.manual_seed(0)
    base = BertForSequenceClassification(CONFIG)
    weights = {name: held.clone() for name, held in base.state_dict().items()}
    lora = LoraConfig(
        task_type="SEQ_CLS", r=8, lora_alpha=32, target_modules=["query", "value"]
    )
    model: Any = amprewrite.convert(get_peft_model(base, lora).train())
    model.print_trainable_parameters()

    trained = [held for held in model.parameters() if held.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses: list[float] = []
    for _ in range(100):
        ids, labels = batch(64)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(model.plan.summary())
    print(f"loss {losses[0]:.3f} to {sum(losses[-10:]) / 10:.3f}")

    ids, _ = batch(64)
    fresh = BertForSequenceClassification(CONFIG)
    fresh.load_state_dict(weights)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # the adapters alone
        merged = PeftModel.from_pretrained(fresh, folder).merge_and_unload().eval()
    with torch.no_grad():
        full, low = merged(ids).logits, model.eval()(ids).logits
    print(f"error {(low - full).norm() / full.norm():.5f}")


if __name__ == "__main__":
    main()
