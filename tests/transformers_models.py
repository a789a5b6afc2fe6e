"""Small transformers models with random weights, and texts and inputs for them.

:func:`build` makes those that generate and are compared by name, of two layers (T5 of
one in each half); :func:`tiny` makes any class, of one layer, for the tokenizer of few
words. Their weights are larger than those that transformers draws, so that the models
tell their inputs apart.
"""

from collections.abc import Callable, Mapping
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
"""Height and width of the images that a ViT of :func:`tiny` takes."""

VOCABULARY = 128
WIDTH = 32

_CLASSES: dict[str, Any] = {"num_labels": 3}
_START: dict[str, Any] = {"decoder_start_token_id": 0}
_DECODER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
_BOTH: dict[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 3,
}


def bert() -> Any:
    """Return a classifier of texts."""
    config = transformers.BertConfig(**(_DECODER | _CLASSES))
    return transformers.BertForSequenceClassification(config)


def gpt2() -> Any:
    """Return a language model with learned positions."""
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=128
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    """Return a language model with rotary positions and grouped keys."""
    config = transformers.LlamaConfig(**_DECODER, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def mistral() -> Any:
    """Return a language model that attends to the last eight tokens."""
    config = transformers.MistralConfig(
        **_DECODER, num_key_value_heads=2, sliding_window=8
    )
    return transformers.MistralForCausalLM(config)


def gemma3() -> Any:
    """Return a language model with layers that attend to a window, and to all."""
    config = transformers.Gemma3TextConfig(
        **_DECODER,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    return transformers.Gemma3ForCausalLM(config)


def t5() -> Any:
    """Return an encoder and decoder with relative positions."""
    config = transformers.T5Config(
        d_model=WIDTH,
        d_ff=64,
        num_layers=1,  # of each half: captures take most of the time of tests
        num_heads=4,
        d_kv=8,
        vocab_size=VOCABULARY,
        **_START,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart() -> Any:
    """Return an encoder and decoder of text."""
    config = transformers.BartConfig(**_BOTH, max_position_embeddings=128)
    return transformers.BartForConditionalGeneration(config)


def whisper() -> Any:
    """Return an encoder of sound with a decoder of text."""
    config = transformers.WhisperConfig(
        **_BOTH,
        num_mel_bins=16,
        max_source_positions=24,
        max_target_positions=64,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config)


def vit() -> Any:
    """Return a classifier of images."""
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        **_CLASSES,
    )
    return transformers.ViTForImageClassification(config)


MODELS: Mapping[str, Callable[[], Any]] = {
    made.__name__: made
    for made in (bert, gpt2, llama, mistral, gemma3, t5, bart, whisper, vit)
}


def build(name: str) -> Any:
    """Return a model in eval mode, with the same weights each time.

    Embeddings are of unit scale, so that tokens are told apart.
    """
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.mul_(2)
    if model.can_generate():
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None  # all texts have one length
    return model


def inputs(name: str, tokens: int = 6, batch: int = 2) -> dict[str, torch.Tensor]:
    """Return the main inputs of a model: token ids, an image, or sound.

    Args:
        name: The model.
        tokens: Number of tokens of a text.
        batch: Number of texts, images or sounds.
    """
    numbers = torch.Generator().manual_seed(tokens)
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=numbers)}
    if name == "whisper":
        return {"input_features": torch.randn(batch, 16, 48, generator=numbers)}
    ids = torch.randint(4, VOCABULARY, (batch, tokens), generator=numbers)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def call(name: str, tokens: int = 6, batch: int = 2) -> dict[str, torch.Tensor]:
    """Return the arguments of a forward pass: the inputs, and those of a decoder."""
    found = inputs(name, tokens, batch)
    if name in ("t5", "bart", "whisper"):
        numbers = torch.Generator().manual_seed(tokens)
        ids = torch.randint(4, VOCABULARY, (batch, 5), generator=numbers)
        found["decoder_input_ids"] = ids
    return found


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
    wanted: dict[str, Any] = _DECODER | {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "num_hidden_layers": 1,
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
