"""Tiny transformers models with random weights, and a tokenizer of a few words.

The weights are larger than those that transformers draws, so that the models tell
their inputs apart.
"""

from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "a", "quick", "brown", "red", "fox", "dog", "cat", "jumps", "over")
WORDS += ("runs", "to", "lazy", "one", "two", "three")
SENTENCES = ["the quick brown fox jumps", "one two three", "a lazy dog runs to the cat"]
"""Of five, three and seven words."""

PIXELS = 8
"""Height and width of the images that :func:`vit` takes."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of :data:`WORDS`, with the special tokens of BERT."""
    names = (*SPECIAL, *WORDS)
    numbers = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, numbers[name]) for name in ("[CLS]", "[SEP]")],
    )
    kinds = ("pad", "unk", "cls", "sep", "mask")
    given = {f"{kind}_token": name for kind, name in zip(kinds, SPECIAL, strict=True)}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
        eos_token="[SEP]",
        **given,
    )


def tiny(kind: str, seed: int = 0, **options: Any) -> Any:
    """Return a model with one layer, in eval mode.

    Args:
        kind: Its class, such as ``BertModel``.
        seed: Seed of its weights.
        options: Fields of its configuration that differ.
    """
    torch.manual_seed(seed)
    cls = getattr(transformers, kind)
    wanted: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.4,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    if kind.startswith("ViT"):
        wanted |= {"image_size": PIXELS, "patch_size": 2}
    return cls(cls.config_class(**wanted | options)).eval()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten digits, f32[count, 3, 8, 8] in 0 to 1, and their labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.reshape(pixels, (-1, 1, PIXELS, PIXELS))[:count].repeat(3, axis=1) / 16
    return images.astype(np.float32), np.asarray(labels)[:count]


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Random texts of :data:`WORDS`, of two to seven words.

    The label is 1 for texts with an animal.
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        numbers, tokens = np.random.default_rng(seed), tokenizer()
        texts = [numbers.choice(WORDS, numbers.integers(2, 8)) for _ in range(count)]
        animals = {"fox", "dog", "cat"}
        self._rows = [
            {**tokens(" ".join(text)), "labels": int(not animals.isdisjoint(text))}
            for text in texts
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self._rows[index])
