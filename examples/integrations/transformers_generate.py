"""Generate text by transformers with a converted language model of random weights."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import amprewrite


def main() -> None:
    """Generate from two prompts in three ways, and compare with the plain model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=128,
        pad_token_id=0,
        eos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config).eval()
    converted = amprewrite.convert(model)

    same = []
    for length in (5, 9):
        prompt = torch.randint(3, 128, (1, length))
        given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8}
        for how in ({}, {"num_beams": 3}, {"cache_implementation": "static"}):
            found = converted.generate(prompt, **given, **how)
            expected = model.generate(prompt, **given, **how)
            same.append((found == expected).float().mean())

    print(converted.plan.summary())
    print(f"{len(converted.plans)} programs")
    print(f"tokens as in float32: {torch.stack(same).mean():.2f}")


if __name__ == "__main__":
    main()
