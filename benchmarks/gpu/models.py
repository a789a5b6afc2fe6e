"""Models of usual size for a GPU, with random weights; tiny ones of the same kind.

Random weights cost what trained ones cost. Errors are measured on the models of
``benchmarks.zoo``, whose weights have unit gain.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from amprewrite.frameworks.torch_fx.compat.pytrees import pytree
from benchmarks.zoo import Case

SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Subject:
    """A model and the inputs that it is measured on.

    Attributes:
        build: Gives the model, from the changes to its configuration.
        inputs: Gives arguments and keyword arguments, from configuration, batch and
            tokens.
        batch: Batch that fills a card of 80 GB without filling its memory.
        tokens: Length of a sequence; 0 for images.
        tiny: Changes to the configuration for a rehearsal.
    """

    build: Callable[[Mapping[str, Any]], nn.Module]
    inputs: Callable[[Any, int, int], tuple[tuple[Any, ...], dict[str, Any]]]
    batch: int
    tokens: int
    tiny: Mapping[str, Any]


def _ids(config: Any, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(3, config.vocab_size, (batch, tokens))


def _encoder_inputs(config: Any, batch: int, tokens: int) -> Any:
    ids = _ids(config, batch, tokens)
    return (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _decoder_inputs(config: Any, batch: int, tokens: int) -> Any:
    return (_ids(config, batch, tokens),), {"use_cache": False}


def _pair_inputs(config: Any, batch: int, tokens: int) -> Any:
    ids = _ids(config, batch, tokens)
    return (), {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}


def _image_inputs(config: Any, batch: int, tokens: int) -> Any:
    del tokens
    side = getattr(config, "image_size", 224)
    return (torch.randn(batch, 3, side, side),), {}


def _sound_inputs(config: Any, batch: int, tokens: int) -> Any:
    frames = 2 * config.max_source_positions
    sound = torch.randn(batch, config.num_mel_bins, frames)
    ids = _ids(config, batch, tokens)
    return (), {"input_features": sound, "decoder_input_ids": ids, "use_cache": False}


def _bert(changes: Mapping[str, Any]) -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**changes))


def _gpt2(changes: Mapping[str, Any]) -> nn.Module:
    config = transformers.GPT2Config(**{**SPECIALS, **changes})
    return transformers.GPT2LMHeadModel(config)


def _vit(changes: Mapping[str, Any]) -> nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(**changes))


def _resnet(changes: Mapping[str, Any]) -> nn.Module:
    return transformers.ResNetModel(transformers.ResNetConfig(**changes))


def _llama(changes: Mapping[str, Any]) -> nn.Module:
    """The shape of TinyLlama: 1.1e9 parameters."""
    shape: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    }
    config = transformers.LlamaConfig(**{**shape, **SPECIALS, **changes})
    return transformers.LlamaForCausalLM(config)


def _whisper(changes: Mapping[str, Any]) -> nn.Module:
    shape: dict[str, Any] = {
        "d_model": 768,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
    }
    config = transformers.WhisperConfig(**{**shape, **SPECIALS, **changes})
    return transformers.WhisperModel(config)


def _t5(changes: Mapping[str, Any]) -> nn.Module:
    shape: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "num_layers": 12}
    config = transformers.T5Config(**{**shape, "num_heads": 12, **changes})
    return transformers.T5Model(config)


def _mamba(changes: Mapping[str, Any]) -> nn.Module:
    shape: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 24}
    config = transformers.MambaConfig(**{**shape, **SPECIALS, **changes})
    return transformers.MambaForCausalLM(config)


_TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}

MODELS: Mapping[str, Subject] = {
    "bert-base": Subject(_bert, _encoder_inputs, 64, 512, _TEXT),
    "gpt2": Subject(
        _gpt2,
        _decoder_inputs,
        16,
        1024,
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 2},
    ),
    "resnet-50": Subject(
        _resnet,
        _image_inputs,
        256,
        0,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),
    "llama-1b": Subject(
        _llama, _decoder_inputs, 8, 1024, {**_TEXT, "num_key_value_heads": 1}
    ),
    "vit-b16": Subject(
        _vit,
        _image_inputs,
        128,
        0,
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 32,
        },
    ),
    "t5-base": Subject(
        _t5,
        _pair_inputs,
        32,
        512,
        {
            "vocab_size": 100,
            "d_model": 32,
            "d_ff": 64,
            "d_kv": 16,
            "num_layers": 2,
            "num_heads": 2,
        },
    ),
    "whisper-small": Subject(
        _whisper,
        _sound_inputs,
        16,
        128,
        {
            "vocab_size": 100,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": 20,
        },
    ),
    # Without kernels of its own the library runs the recurrence a token at a time, and
    # every token is in the captured graph.
    "mamba-130m": Subject(
        _mamba,
        _decoder_inputs,
        32,
        32,
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2},
    ),
}
"""The models, in order of worth: the first are measured if time is short."""


def build(name: str, device: str, *, tiny: bool) -> nn.Module:
    """Return a model in eval mode on a device, the same for the same arguments."""
    subject = MODELS[name]
    torch.manual_seed(0)
    model = subject.build(subject.tiny if tiny else {})
    return model.eval().to(device)


def inputs(
    name: str, model: nn.Module, device: str, *, batch: int | None, tiny: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments on a device.

    Args:
        name: A key of :data:`MODELS`.
        model: The model that takes them.
        device: Where they are.
        batch: Sequences, images or sounds; None for what fills the card.
        tiny: Whether this is a rehearsal: two of them, eight tokens each.
    """
    subject = MODELS[name]
    torch.manual_seed(1)
    if tiny:
        found = subject.inputs(model.config, 2, 8 if subject.tokens else 0)
    else:
        found = subject.inputs(model.config, batch or subject.batch, subject.tokens)
    return on(device, found)


def on(device: str, value: Any) -> Any:
    """Return a nest of tensors on a device."""

    def move(leaf: object) -> object:
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, value)


def case(name: str, device: str, *, batch: int | None, tiny: bool) -> Case:
    """Return a model and its arguments."""
    model = build(name, device, tiny=tiny)
    return model, *inputs(name, model, device, batch=batch, tiny=tiny)
